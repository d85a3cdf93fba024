//! The channels of a connection: a message's first byte says which it is on.

use belay_runtime::Size;
use bytes::Bytes;
use serde::Deserialize;
use tokio_tungstenite::tungstenite::Message;

use super::handshake::Protocol;

const STDIN: u8 = 0;
pub(super) const STDOUT: u8 = 1;
pub(super) const STDERR: u8 = 2;
pub(super) const STATUS: u8 = 3;
const RESIZE: u8 = 4;
/// Followed by the channel that is closed.
const CLOSE: u8 = 255;

/// What a client says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Said {
    Stdin(Bytes),
    StdinClosed,
    Resize(Size),
    /// Nothing that matters.
    Nothing,
    /// It says goodbye.
    Goodbye,
}

/// The size of a terminal, as clients write it.
#[derive(Debug, Deserialize)]
struct TerminalSize {
    #[serde(rename = "Width", alias = "width")]
    width: u16,
    #[serde(rename = "Height", alias = "height")]
    height: u16,
}

/// Understands a message. What is not known is nothing, as for a stock server.
pub(super) fn understand(message: Message, protocol: Protocol) -> Said {
    let data = match message {
        Message::Binary(data) => data,
        Message::Text(text) => Bytes::from(text),
        Message::Close(_) => return Said::Goodbye,
        Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => return Said::Nothing,
    };
    match (data.first(), protocol) {
        (Some(&STDIN), _) => Said::Stdin(data.slice(1..)),
        (Some(&RESIZE), _) => match serde_json::from_slice::<TerminalSize>(&data[1..]) {
            Ok(size) => Said::Resize(Size {
                columns: size.width,
                rows: size.height,
            }),
            Err(_) => Said::Nothing,
        },
        (Some(&CLOSE), Protocol::V5) if data.get(1) == Some(&STDIN) => Said::StdinClosed,
        _ => Said::Nothing,
    }
}

/// A message on a channel.
pub(super) fn message(channel: u8, data: &[u8]) -> Message {
    let mut bytes = Vec::with_capacity(data.len() + 1);
    bytes.push(channel);
    bytes.extend_from_slice(data);
    Message::Binary(bytes.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn said(data: &[u8]) -> Said {
        understand(Message::Binary(data.to_vec().into()), Protocol::V5)
    }

    #[test]
    fn the_first_byte_says_what_it_is() {
        assert_eq!(said(b"\0abc"), Said::Stdin(Bytes::from_static(b"abc")));
        assert_eq!(said(b"\0"), Said::Stdin(Bytes::new()));
        let size = Size {
            columns: 80,
            rows: 24,
        };
        assert_eq!(
            said(b"\x04{\"Width\":80,\"Height\":24}\n"),
            Said::Resize(size)
        );
        assert_eq!(said(b"\xff\0"), Said::StdinClosed);
        for other in [
            b"".as_slice(),
            b"\x01x",
            b"\x04nonsense",
            b"\xff\x01",
            b"\xff",
        ] {
            assert_eq!(said(other), Said::Nothing, "{other:?}");
        }
        assert_eq!(
            understand(Message::Close(None), Protocol::V4),
            Said::Goodbye
        );
    }

    #[test]
    fn in_the_older_protocol_no_channel_can_be_closed() {
        let close = Message::Binary(vec![CLOSE, STDIN].into());
        assert_eq!(understand(close, Protocol::V4), Said::Nothing);
    }

    proptest! {
        #[test]
        fn any_message_is_taken_without_a_panic(data in proptest::collection::vec(any::<u8>(), 0..40)) {
            said(&data);
        }
    }
}
