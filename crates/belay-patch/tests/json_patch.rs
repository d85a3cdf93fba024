//! JSON patch: the examples of RFC 6902, what a stock server adds, and the limits.

use belay_patch::{MAX_OPERATIONS, PatchError, json_patch};
use serde_json::{Value, json};

fn patched(mut doc: Value, patch: &Value) -> Result<Value, PatchError> {
    json_patch(&mut doc, patch).map(|()| doc)
}

#[test]
fn the_examples_of_rfc_6902_come_out_as_it_says() {
    let cases = [
        (
            "A.1 adding an object member",
            json!({"foo": "bar"}),
            json!([{"op": "add", "path": "/baz", "value": "qux"}]),
            json!({"baz": "qux", "foo": "bar"}),
        ),
        (
            "A.2 adding an array element",
            json!({"foo": ["bar", "baz"]}),
            json!([{"op": "add", "path": "/foo/1", "value": "qux"}]),
            json!({"foo": ["bar", "qux", "baz"]}),
        ),
        (
            "A.3 removing an object member",
            json!({"baz": "qux", "foo": "bar"}),
            json!([{"op": "remove", "path": "/baz"}]),
            json!({"foo": "bar"}),
        ),
        (
            "A.4 removing an array element",
            json!({"foo": ["bar", "qux", "baz"]}),
            json!([{"op": "remove", "path": "/foo/1"}]),
            json!({"foo": ["bar", "baz"]}),
        ),
        (
            "A.5 replacing a value",
            json!({"baz": "qux", "foo": "bar"}),
            json!([{"op": "replace", "path": "/baz", "value": "boo"}]),
            json!({"baz": "boo", "foo": "bar"}),
        ),
        (
            "A.6 moving a value",
            json!({"foo": {"bar": "baz", "waldo": "fred"}, "qux": {"corge": "grault"}}),
            json!([{"op": "move", "from": "/foo/waldo", "path": "/qux/thud"}]),
            json!({"foo": {"bar": "baz"}, "qux": {"corge": "grault", "thud": "fred"}}),
        ),
        (
            "A.7 moving an array element",
            json!({"foo": ["all", "grass", "cows", "eat"]}),
            json!([{"op": "move", "from": "/foo/1", "path": "/foo/3"}]),
            json!({"foo": ["all", "cows", "eat", "grass"]}),
        ),
        (
            "A.8 testing a value: success",
            json!({"baz": "qux", "foo": ["a", 2, "c"]}),
            json!([
                {"op": "test", "path": "/baz", "value": "qux"},
                {"op": "test", "path": "/foo/1", "value": 2}
            ]),
            json!({"baz": "qux", "foo": ["a", 2, "c"]}),
        ),
        (
            "A.10 adding a nested member object",
            json!({"foo": "bar"}),
            json!([{"op": "add", "path": "/child", "value": {"grandchild": {}}}]),
            json!({"foo": "bar", "child": {"grandchild": {}}}),
        ),
        (
            "A.11 ignoring unrecognised elements",
            json!({"foo": "bar"}),
            json!([{"op": "add", "path": "/baz", "value": "qux", "xyz": 123}]),
            json!({"foo": "bar", "baz": "qux"}),
        ),
        (
            "A.14 escape ordering",
            json!({"/": 9, "~1": 10}),
            json!([{"op": "test", "path": "/~01", "value": 10}]),
            json!({"/": 9, "~1": 10}),
        ),
        (
            "A.16 adding an array value",
            json!({"foo": ["bar"]}),
            json!([{"op": "add", "path": "/foo/-", "value": ["abc", "def"]}]),
            json!({"foo": ["bar", ["abc", "def"]]}),
        ),
    ];
    for (name, doc, patch, expected) in cases {
        assert_eq!(patched(doc, &patch), Ok(expected), "{name}");
    }
}

#[test]
fn the_failing_examples_of_rfc_6902_fail() {
    let cases = [
        (
            "A.9 testing a value: error",
            json!({"baz": "qux"}),
            json!([{"op": "test", "path": "/baz", "value": "bar"}]),
        ),
        (
            "A.12 adding to a nonexistent target",
            json!({"foo": "bar"}),
            json!([{"op": "add", "path": "/baz/bat", "value": "qux"}]),
        ),
        (
            "A.15 comparing strings and numbers",
            json!({"/": 9, "~1": 10}),
            json!([{"op": "test", "path": "/~01", "value": "10"}]),
        ),
    ];
    for (name, doc, patch) in cases {
        let error = patched(doc, &patch).expect_err(name);
        assert!(!error.is_malformed(), "{name}: {error}");
    }
}

#[test]
fn copies_moves_and_whole_documents() {
    let cases = [
        (
            json!({"a": [1]}),
            json!([{"op": "copy", "from": "/a/0", "path": "/a/0"}]),
            json!({"a": [1, 1]}),
        ),
        (
            json!({"a": 1}),
            json!([{"op": "move", "from": "/a", "path": "/a"}]),
            json!({"a": 1}),
        ),
        (
            json!({"a": 1}),
            json!([{"op": "replace", "path": "", "value": {"b": 2}}]),
            json!({"b": 2}),
        ),
        (
            json!({"a": 1}),
            json!([{"op": "add", "path": "", "value": {}}]),
            json!({}),
        ),
        (
            json!({"a": 1}),
            json!([{"op": "copy", "from": "", "path": "/b"}]),
            json!({"a": 1, "b": {"a": 1}}),
        ),
        (json!({"a": 1}), json!([]), json!({"a": 1})),
    ];
    for (doc, patch, expected) in cases {
        assert_eq!(patched(doc, &patch), Ok(expected), "{patch}");
    }
}

#[test]
fn what_a_stock_server_allows_beyond_the_rfc_is_allowed() {
    let cases = [
        (
            json!({}),
            json!([{"op": "replace", "path": "/a", "value": 1}]),
            json!({"a": 1}),
        ),
        (
            json!({}),
            json!([{"op": "test", "path": "/a", "value": null}]),
            json!({}),
        ),
        (
            json!({"a": [1, 2]}),
            json!([{"op": "remove", "path": "/a/-1"}]),
            json!({"a": [1]}),
        ),
        (
            json!({"a": [1, 2]}),
            json!([{"op": "replace", "path": "/a/-2", "value": 0}]),
            json!({"a": [0, 2]}),
        ),
        (
            json!({"a": [1, 2]}),
            json!([{"op": "add", "path": "/a/-1", "value": 3}]),
            json!({"a": [1, 2, 3]}),
        ),
    ];
    for (doc, patch, expected) in cases {
        assert_eq!(patched(doc, &patch), Ok(expected), "{patch}");
    }
}

#[test]
fn an_operation_that_does_not_apply_says_which_and_why() {
    let cases = [
        (
            json!([{"op": "remove", "path": "/x"}]),
            "operation 0 of the JSON patch (remove) does not apply: there is nothing at \"/x\"",
        ),
        (
            json!([{"op": "remove", "path": "/a/2"}]),
            "operation 0 of the JSON patch (remove) does not apply: the list has no such index at \"/a/2\"",
        ),
        (
            json!([{"op": "add", "path": "/a/5", "value": 1}]),
            "operation 0 of the JSON patch (add) does not apply: the list has no such index at \"/a/5\"",
        ),
        (
            json!([{"op": "add", "path": "/a/01", "value": 1}]),
            "operation 0 of the JSON patch (add) does not apply: the list has no such index at \"/a/01\"",
        ),
        (
            json!([{"op": "add", "path": "/n/x", "value": 1}]),
            "operation 0 of the JSON patch (add) does not apply: there is no object or list to hold the value at \"/n/x\"",
        ),
        (
            json!([{"op": "copy", "from": "/x", "path": "/y"}]),
            "operation 0 of the JSON patch (copy) does not apply: there is nothing at \"/x\"",
        ),
        (
            json!([{"op": "move", "from": "/a", "path": "/a/0"}]),
            "operation 0 of the JSON patch (move) does not apply: a value cannot be moved into itself, as at \"/a/0\"",
        ),
        (
            json!([{"op": "test", "path": "/n", "value": 2}]),
            "testing value /n failed: test failed (operation 0 of the JSON patch)",
        ),
    ];
    for (patch, expected) in cases {
        let error = patched(json!({"a": [1, 2], "n": 1}), &patch).expect_err("must fail");
        assert_eq!(error.to_string(), expected);
        assert!(!error.is_malformed());
    }
}

#[test]
fn a_malformed_patch_is_told_from_one_that_does_not_apply() {
    let cases = [
        json!({}),
        json!(null),
        json!([1]),
        json!([{}]),
        json!([{"op": "add", "value": 1}]),
        json!([{"op": "add", "path": "/a"}]),
        json!([{"op": "add", "path": "a", "value": 1}]),
        json!([{"op": "add", "path": "/~2", "value": 1}]),
        json!([{"op": "add", "path": 1, "value": 1}]),
        json!([{"op": "move", "path": "/a"}]),
        json!([{"op": "frobnicate", "path": "/a"}]),
        json!([{"op": 1, "path": "/a"}]),
    ];
    for patch in cases {
        let error = patched(json!({}), &patch).expect_err("must fail");
        assert!(error.is_malformed(), "{patch}: {error}");
    }
}

#[test]
fn the_number_of_operations_is_limited() {
    let operation = json!({"op": "test", "path": "", "value": {}});
    let allowed = Value::Array(vec![operation.clone(); MAX_OPERATIONS]);
    assert_eq!(patched(json!({}), &allowed), Ok(json!({})));
    let many = Value::Array(vec![operation; MAX_OPERATIONS + 1]);
    assert_eq!(
        patched(json!({}), &many),
        Err(PatchError::TooManyOperations {
            count: MAX_OPERATIONS + 1
        })
    );
}

#[test]
fn copies_that_double_a_document_again_and_again_are_stopped() {
    let double = json!({"op": "copy", "from": "/a", "path": "/a/-"});
    let patch = Value::Array(vec![double; 100]);
    let doc = json!({"a": ["x".repeat(1000)]});
    assert_eq!(patched(doc, &patch), Err(PatchError::CopiesTooMuch));
}

#[test]
fn no_sequence_of_operations_makes_a_document_too_deep() {
    let nested = |levels: usize| (0..levels).fold(json!(1), |inner, _| json!({ "a": inner }));
    let deep = json!([{"op": "add", "path": "/a", "value": nested(119)}]);
    assert!(patched(json!({}), &deep).is_ok());
    let deeper = json!([{"op": "add", "path": "/a", "value": nested(120)}]);
    assert_eq!(patched(json!({}), &deeper), Err(PatchError::TooDeep));

    let sink = json!({"op": "move", "from": "/a", "path": "/b/a"});
    let lift = json!({"op": "move", "from": "/b/a", "path": "/a"});
    let doc = json!({"a": nested(100), "b": {}});
    let patch: Vec<Value> = std::iter::repeat_n([sink, lift], 1000).flatten().collect();
    assert_eq!(patched(doc.clone(), &Value::Array(patch)), Ok(doc));

    let dig = json!({"op": "move", "from": "/a", "path": "/b/a"});
    let nest = json!({"op": "move", "from": "/b", "path": "/a"});
    let again = json!({"op": "add", "path": "/b", "value": {}});
    let patch: Vec<Value> = std::iter::repeat_n([dig, nest, again], 200)
        .flatten()
        .collect();
    let error = patched(json!({"a": 1, "b": {}}), &Value::Array(patch));
    assert_eq!(error, Err(PatchError::TooDeep));
}
