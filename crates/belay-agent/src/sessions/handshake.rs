//! Accepting a WebSocket with one of the channel protocols.

use http::{HeaderMap, HeaderName, HeaderValue, header};
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use super::Refusal;

/// How the channels are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// The end of the input cannot be told.
    V4,
    /// One message closes a channel.
    V5,
}

impl Protocol {
    /// Ours, the best first.
    const ALL: [Self; 2] = [Protocol::V5, Protocol::V4];

    fn name(self) -> &'static str {
        match self {
            Protocol::V4 => "v4.channel.k8s.io",
            Protocol::V5 => "v5.channel.k8s.io",
        }
    }
}

/// What the client is answered with `101 Switching Protocols`.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub(crate) protocol: Protocol,
    key: String,
}

impl Accepted {
    pub(crate) fn headers(&self) -> [(HeaderName, HeaderValue); 4] {
        let key = HeaderValue::from_str(&self.key);
        [
            (header::CONNECTION, HeaderValue::from_static("Upgrade")),
            (header::UPGRADE, HeaderValue::from_static("websocket")),
            (
                header::SEC_WEBSOCKET_ACCEPT,
                // Base64 is always a good value.
                key.unwrap_or_else(|_| HeaderValue::from_static("")),
            ),
            (
                header::SEC_WEBSOCKET_PROTOCOL,
                HeaderValue::from_static(self.protocol.name()),
            ),
        ]
    }
}

/// Reads a handshake.
pub(super) fn accept(headers: &HeaderMap) -> Result<Accepted, Refusal> {
    let words = |name: HeaderName| -> Vec<String> {
        let values = headers.get_all(name).into_iter();
        values
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .map(|word| word.trim().to_owned())
            .filter(|word| !word.is_empty())
            .collect()
    };
    let has = |name: HeaderName, wanted: &str| {
        words(name)
            .iter()
            .any(|word| word.eq_ignore_ascii_case(wanted))
    };
    if has(header::UPGRADE, "SPDY/3.1") {
        return Err(Refusal::bad_request(
            "SPDY is not spoken here, only WebSockets: use kubectl 1.31 or later, or set \
             KUBECTL_REMOTE_COMMAND_WEBSOCKETS=true for kubectl 1.29 and 1.30",
        ));
    }
    if !has(header::CONNECTION, "upgrade") || !has(header::UPGRADE, "websocket") {
        return Err(Refusal::bad_request("Upgrade request required"));
    }
    if !has(header::SEC_WEBSOCKET_VERSION, "13") {
        return Err(Refusal::bad_request(
            "only version 13 of WebSockets is known",
        ));
    }
    let offered = words(header::SEC_WEBSOCKET_PROTOCOL);
    let protocol = Protocol::ALL
        .into_iter()
        .find(|protocol| offered.iter().any(|offered| offered == protocol.name()));
    let protocol = protocol.ok_or_else(|| {
        Refusal::bad_request(format!(
            "none of the protocols {offered:?} is known, only {:?}",
            Protocol::ALL.map(Protocol::name)
        ))
    })?;
    let key = headers.get(header::SEC_WEBSOCKET_KEY);
    let key = key.ok_or_else(|| Refusal::bad_request("Sec-WebSocket-Key is missing"))?;
    Ok(Accepted {
        protocol,
        key: derive_accept_key(key.as_bytes()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            let name: HeaderName = name.parse().unwrap();
            headers.append(name, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    const GOOD: [(&str, &str); 4] = [
        ("connection", "keep-alive, Upgrade"),
        ("upgrade", "WebSocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];

    fn offering(protocols: &str) -> HeaderMap {
        let protocol = ("sec-websocket-protocol", protocols);
        headers(&[&GOOD[..], &[protocol]].concat())
    }

    #[test]
    fn the_best_protocol_that_both_know_is_taken() {
        for (offered, taken) in [
            ("v5.channel.k8s.io", Protocol::V5),
            ("v4.channel.k8s.io", Protocol::V4),
            ("v4.channel.k8s.io, v5.channel.k8s.io", Protocol::V5),
            ("base64.channel.k8s.io,v4.channel.k8s.io", Protocol::V4),
        ] {
            let accepted = accept(&offering(offered)).unwrap();
            assert_eq!(accepted.protocol, taken, "{offered}");
        }
        // The example of RFC 6455.
        let accepted = accept(&offering("v5.channel.k8s.io")).unwrap();
        assert_eq!(accepted.key, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[test]
    fn what_cannot_be_spoken_is_refused_with_what_can() {
        let spdy = headers(&[("connection", "Upgrade"), ("upgrade", "SPDY/3.1")]);
        for (bad, words) in [
            (spdy, "only WebSockets: use kubectl 1.31"),
            (headers(&[]), "Upgrade request required"),
            (headers(&GOOD), "only [\"v5.channel.k8s.io\""),
            (offering("channel.k8s.io"), "[\"channel.k8s.io\"]"),
        ] {
            let refusal = accept(&bad).unwrap_err();
            assert!(refusal.message.contains(words), "{refusal:?}");
        }
        for (missing, _) in GOOD {
            let mut bad = offering("v5.channel.k8s.io");
            bad.remove(missing);
            assert!(accept(&bad).is_err(), "{missing}");
        }
    }
}
