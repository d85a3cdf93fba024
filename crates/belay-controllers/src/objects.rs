//! Objects by name and in pages, read as leniently as [`crate::watching`] reads them: what may be in
//! one beside what is needed of it is up to whoever created it.

use std::fmt::Debug;

use belay_api::lenient::Lenient;
use belay_api::selector::LabelSelector;
use kube::api::{Api, ListParams, PostParams};
use kube::{Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tracing::warn;

/// How long a selector may be in a request. A whole URL may be no longer than 64 KiB.
const MAX_SELECTOR_BYTES: usize = 60 * 1024;

/// The selector as it is in a request, or why a server cannot be asked for what it selects.
pub(crate) fn asked_for(selector: &LabelSelector) -> Result<String, String> {
    let text = selector.to_string();
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    // Anything else takes three bytes.
    let escaped = text.bytes().filter(|byte| !plain(byte)).count();
    let bytes = text.len() + 2 * escaped;
    if bytes <= MAX_SELECTOR_BYTES {
        return Ok(text);
    }
    Err(format!(
        "it takes {bytes} bytes in a request, and may take {MAX_SELECTOR_BYTES}; give the pods a label in common"
    ))
}

/// The object of this name, if there is one.
pub(crate) async fn find<K>(api: &Api<Lenient<K>>, name: &str) -> kube::Result<Option<K>>
where
    K: Clone + Debug + DeserializeOwned,
{
    let found = api.get_opt(name).await?;
    Ok(found.map(Lenient::read).transpose()?)
}

/// Creates it. Returns what the server made of it.
pub(crate) async fn create<K>(api: &Api<Lenient<K>>, object: &K) -> kube::Result<K>
where
    K: Clone + Debug + DeserializeOwned + Serialize,
{
    let object = Lenient::from(object.clone());
    let made = api.create(&PostParams::default(), &object).await?;
    Ok(made.read()?)
}

/// Writes the status, on the version that the object carries. Returns what it is then.
pub(crate) async fn replace_status<K>(api: &Api<Lenient<K>>, object: &K) -> kube::Result<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Serialize,
{
    let object = Lenient::from(object.clone());
    let name = object.name_any();
    let written = api
        .replace_status(&name, &PostParams::default(), &object)
        .await?;
    Ok(written.read()?)
}

/// Everything that the list selects, page by page. What cannot be read is told of and left out.
pub(crate) async fn pages<K>(
    api: &Api<Lenient<K>>,
    first: &ListParams,
    mut take: impl FnMut(K),
) -> kube::Result<()>
where
    K: Clone + Debug + DeserializeOwned,
{
    let readable = |item: Lenient<K>| {
        match item.read() {
            Ok(object) => take(object),
            Err(unreadable) => warn!("{unreadable}; it is passed over"),
        }
        Ok(())
    };
    items(api, first, readable).await
}

/// Everything that the list selects, page by page, or an error where some of it cannot be read.
pub(crate) async fn all<K>(api: &Api<Lenient<K>>, first: &ListParams) -> kube::Result<Vec<K>>
where
    K: Clone + Debug + DeserializeOwned,
{
    let mut all = Vec::new();
    let take = |item: Lenient<K>| {
        all.push(item.read()?);
        Ok(())
    };
    items(api, first, take).await?;
    Ok(all)
}

async fn items<K>(
    api: &Api<Lenient<K>>,
    first: &ListParams,
    mut take: impl FnMut(Lenient<K>) -> kube::Result<()>,
) -> kube::Result<()>
where
    K: Clone + Debug + DeserializeOwned,
{
    let next = ListParams {
        version_match: None,
        resource_version: None,
        ..first.clone()
    };
    let mut page = first.clone();
    loop {
        let list = api.list(&page).await?;
        for item in list.items {
            take(item)?;
        }
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = next.clone().continue_token(&token),
            None => return Ok(()),
        }
    }
}
