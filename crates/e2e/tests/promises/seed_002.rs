//! The end-to-end lines of KEP-4960's test plan (stop signals of containers), on the stage that the
//! file including this one gives. Each test quotes the line it is about.

use belay_testkit::{PodBuilder, Stage, pod, until_file};
use serde_json::{Value, json};

use belay_testkit::ends::{LONG, delete, gone, reports, run, sent};

/// A dozen and one, real-time ones among them, with the numbers that a process sees.
pub(crate) const SIGNALS: [(&str, u8); 13] = [
    ("SIGHUP", 1),
    ("SIGINT", 2),
    ("SIGQUIT", 3),
    ("SIGUSR1", 10),
    ("SIGUSR2", 12),
    ("SIGTERM", 15),
    ("SIGCONT", 18),
    ("SIGWINCH", 28),
    ("SIGPWR", 30),
    ("SIGRTMIN", 34),
    ("SIGRTMIN+3", 37),
    ("SIGRTMAX-2", 62),
    ("SIGRTMAX", 64),
];

/// Reports by its number which of [`SIGNALS`] it got.
pub(crate) fn reports_any(file: &str) -> String {
    let numbers = SIGNALS.map(|(_, number)| number.to_string());
    reports(file, &numbers.each_ref().map(String::as_str))
}

pub(crate) fn effective<'a>(pod: &'a Value, container: &str) -> &'a Value {
    let statuses = ["containerStatuses", "initContainerStatuses"];
    let mut all = statuses
        .iter()
        .filter_map(|list| pod["status"][list].as_array())
        .flatten();
    all.find(|status| status["name"] == container)
        .map_or(&Value::Null, |status| &status["stopSignal"])
}

/// Runs the pod, whose containers `reports` name with their files, deletes it, and returns what each
/// file says in the end.
pub(crate) async fn stopped(
    stage: &Stage,
    name: &str,
    manifest: PodBuilder,
    files: &[String],
) -> anyhow::Result<(Value, Vec<String>)> {
    let running = stage.run(manifest).await?;
    for file in files {
        until_file(file, |text| text.contains("up")).await?;
    }
    delete(stage, name).await?;
    gone(stage, name).await?;
    let heard = files.iter().map(std::fs::read_to_string);
    Ok((running, heard.collect::<Result<_, _>>()?))
}

/// "Test that containers are killed with the right stop signal when StopSignal is passed". The
/// effective signal is in the status, in both of its places the spec is heard.
#[tokio::test(flavor = "multi_thread")]
async fn kep_4960_e2e_containers_are_killed_with_the_right_stop_signal() -> anyhow::Result<()> {
    let Some(stage) = super::stage().await? else {
        return Ok(());
    };
    let mut manifest = pod("signals")
        .grace(LONG)
        .spec("os", json!({"name": "linux"}));
    let mut files = Vec::new();
    for (index, (signal, number)) in SIGNALS.iter().enumerate() {
        let file = stage.file(&format!("signal-{number}"));
        manifest = manifest.container(&format!("c{number}"), ["sh", "-c", &reports_any(&file)]);
        manifest = if index % 2 == 0 {
            manifest.container_field("stopSignal", *signal)
        } else {
            manifest.container_field("lifecycle", json!({ "stopSignal": signal }))
        };
        files.push(file);
    }
    let (running, heard) = stopped(&stage, "signals", manifest, &files).await?;
    for ((signal, number), heard) in SIGNALS.iter().zip(heard) {
        assert_eq!(heard, format!("up\n{number}\n"), "{signal}");
        let container = format!("c{number}");
        assert_eq!(effective(&running, &container), signal);
        let sent = sent(&stage, "signals", &container).await?;
        assert_eq!(sent.signal, *signal);
    }
    Ok(())
}

/// "Test that containers are killed with SIGTERM when no StopSignal is passed". "`StopSignal` in the
/// Container spec can be a nil value. In this case, the default stop signal of SIGTERM will be used."
#[tokio::test(flavor = "multi_thread")]
async fn kep_4960_e2e_containers_are_killed_with_sigterm_when_none_is_passed() -> anyhow::Result<()>
{
    let Some(stage) = super::stage().await? else {
        return Ok(());
    };
    let files = ["unset", "nil"].map(|name| stage.file(name));
    let manifest = pod("default-signal")
        .grace(LONG)
        .container("unset", ["sh", "-c", &reports_any(&files[0])])
        .container("nil", ["sh", "-c", &reports_any(&files[1])])
        .container_field("stopSignal", Value::Null);
    let (running, heard) = stopped(&stage, "default-signal", manifest, &files).await?;
    assert_eq!(heard, ["up\n15\n", "up\n15\n"]);
    for container in ["unset", "nil"] {
        assert_eq!(effective(&running, container), "SIGTERM", "{running:#}");
    }
    Ok(())
}

/// A restartable init container has a signal of its own.
#[tokio::test(flavor = "multi_thread")]
async fn kep_4960_e2e_a_sidecar_is_killed_with_its_own_stop_signal() -> anyhow::Result<()> {
    let Some(stage) = super::stage().await? else {
        return Ok(());
    };
    let files = ["side-signal", "main-signal"].map(|name| stage.file(name));
    let manifest = pod("side-signal")
        .grace(LONG)
        .sidecar("side", ["sh", "-c", &reports_any(&files[0])])
        .container_field("stopSignal", "SIGRTMIN+3")
        .container("main", ["sh", "-c", &reports_any(&files[1])])
        .container_field("stopSignal", "SIGQUIT");
    let (running, heard) = stopped(&stage, "side-signal", manifest, &files).await?;
    assert_eq!(heard, ["up\n37\n", "up\n3\n"]);
    assert_eq!(effective(&running, "side"), "SIGRTMIN+3", "{running:#}");
    assert_eq!(effective(&running, "main"), "SIGQUIT", "{running:#}");
    Ok(())
}

/// A signal that its process does not obey is followed by SIGKILL when the grace is over, and
/// SIGKILL itself may be the stop signal.
#[tokio::test(flavor = "multi_thread")]
async fn kep_4960_e2e_what_does_not_end_on_its_signal_is_killed() -> anyhow::Result<()> {
    let Some(stage) = super::stage().await? else {
        return Ok(());
    };
    let file = stage.file("deaf-to-it");
    let deaf =
        format!("trap 'echo usr1 >> {file}' USR1; echo up >> {file}; while :; do sleep 0.05; done");
    let manifest = pod("deaf-to-it")
        .grace(10)
        .container("deaf", ["sh", "-c", &deaf])
        .container_field("stopSignal", "SIGUSR1")
        .container("killed", ["sh", "-c", "while :; do sleep 0.05; done"])
        .container_field("stopSignal", "SIGKILL");
    let running = run(&stage, manifest, &file).await?;
    assert_eq!(effective(&running, "killed"), "SIGKILL");
    delete(&stage, "deaf-to-it").await?;
    gone(&stage, "deaf-to-it").await?;
    assert_eq!(
        std::fs::read_to_string(&file)?,
        "up\nusr1\n",
        "it came once"
    );
    assert_eq!(
        sent(&stage, "deaf-to-it", "killed").await?.signal,
        "SIGKILL"
    );
    Ok(())
}
