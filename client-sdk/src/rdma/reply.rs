//! What an answer says of its request's token.

use ::http::{HeaderMap, StatusCode};
use keyway_proto::key::Relinquished;
use keyway_proto::{Checksum, ChecksumKind, KeyStrength, NodeId, TransferPath};

const REPLY: &str = "x-amz-rdma-reply";
const BYTES: &str = "x-amz-rdma-bytes-transferred";
const KEY: &str = "x-keyway-rdma-key";
const PATH: &str = "x-keyway-rdma-path";
const STRENGTH: &str = "x-keyway-rdma-strength";
const CHECKSUM: &str = "x-keyway-rdma-checksum";
const NODE: &str = "x-keyway-node";

/// How a token was met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// The bytes moved by RDMA.
    Moved(Moved),
    /// Declined: they travel over HTTP. The node that has them, where a session with it would
    /// have served.
    Declined(Option<NodeId>),
    /// Nothing is said of the token.
    Absent,
    /// What is said makes no sense.
    Malformed,
}

/// What the service says it moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Moved {
    pub(crate) bytes: u64,
    /// What protected the memory, as the node sees it.
    pub(crate) strength: Option<KeyStrength>,
    pub(crate) path: Option<TransferPath>,
    /// Of the bytes, as the node saw them.
    pub(crate) crc64nvme: Checksum,
}

impl Reply {
    pub(crate) fn of(status: StatusCode, headers: &HeaderMap) -> Self {
        let Some(reply) = text(headers, REPLY) else { return Self::Absent };
        match (reply, status.as_u16()) {
            ("501", _) => Self::Declined(node(headers)),
            ("200", 200) | ("206", 206) => moved(headers).map_or(Self::Malformed, Self::Moved),
            _ => Self::Malformed,
        }
    }

    pub(crate) fn has_moved(&self) -> bool {
        matches!(self, Self::Moved(_))
    }
}

/// What the node knows of the key. An answer that does not say is one of [`Relinquished::Unknown`].
pub(crate) fn relinquished(headers: &HeaderMap) -> Relinquished {
    text(headers, KEY).map_or(Relinquished::Unknown, Relinquished::from_name)
}

fn node(headers: &HeaderMap) -> Option<NodeId> {
    text(headers, NODE)?.parse().ok().map(NodeId)
}

fn moved(headers: &HeaderMap) -> Option<Moved> {
    let named = |name: &str| KeyStrength::ALL.into_iter().find(|known| known.as_str() == name);
    let paths = TransferPath::ALL;
    let path = |name: &str| paths.into_iter().find(|known| known.as_str() == name);
    // Without one nothing would tell what landed: such an answer is as good as none.
    let said = text(headers, CHECKSUM)?.strip_prefix("crc64nvme=")?;
    let crc64nvme = Checksum::from_base64(ChecksumKind::Crc64Nvme, said)?;
    Some(Moved {
        bytes: text(headers, BYTES)?.parse().ok()?,
        strength: text(headers, STRENGTH).and_then(named),
        path: text(headers, PATH).and_then(path),
        crc64nvme,
    })
}

/// A header that is there once.
fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let mut values = headers.get_all(name).into_iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value)
}

#[cfg(test)]
mod tests {
    use ::http::{HeaderName, HeaderValue};
    use proptest::prelude::*;

    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            let value = HeaderValue::from_str(value).expect("a value");
            headers.append(HeaderName::from_static(name), value);
        }
        headers
    }

    fn reply(status: u16, pairs: &[(&'static str, &str)]) -> Reply {
        Reply::of(StatusCode::from_u16(status).expect("a status"), &headers(pairs))
    }

    #[test]
    fn every_case_of_the_table() {
        let sum = Checksum::of(ChecksumKind::Crc64Nvme, b"abc");
        let said = format!("crc64nvme={}", sum.to_base64());
        let done = [
            (REPLY, "206"),
            (BYTES, "3"),
            (PATH, "verbs-host"),
            (STRENGTH, "window"),
            (CHECKSUM, &said),
        ];
        let moved = Moved {
            bytes: 3,
            strength: Some(KeyStrength::Window),
            path: Some(TransferPath::VerbsHost),
            crc64nvme: sum,
        };
        assert_eq!(reply(206, &done), Reply::Moved(moved));
        assert_eq!(reply(200, &[(REPLY, "501")]), Reply::Declined(None));
        let elsewhere = [(REPLY, "501"), (NODE, "7")];
        assert_eq!(reply(501, &elsewhere), Reply::Declined(Some(NodeId(7))));
        assert_eq!(reply(200, &[]), Reply::Absent);
        assert_eq!(reply(404, &[]), Reply::Absent);
    }

    #[test]
    fn what_makes_no_sense_moves_nothing() {
        let said = format!("crc64nvme={}", Checksum::of(ChecksumKind::Crc64Nvme, b"a").to_base64());
        let sum = (CHECKSUM, said.as_str());
        assert!(reply(200, &[(REPLY, "200"), (BYTES, "1"), sum]).has_moved());
        for strange in [
            &[(REPLY, "200"), sum][..],
            &[(REPLY, "200"), (BYTES, "-1"), sum],
            &[(REPLY, "206"), (BYTES, "1"), sum],
            &[(REPLY, "200"), (BYTES, "1"), (BYTES, "2"), sum],
            &[(REPLY, "200"), (BYTES, "1")],
            &[(REPLY, "200"), (BYTES, "1"), sum, sum],
            &[(REPLY, "200"), (BYTES, "1"), (CHECKSUM, "crc64nvme=?")],
            &[(REPLY, "200"), (BYTES, "1"), (CHECKSUM, "md5=")],
        ] {
            assert_eq!(reply(200, strange), Reply::Malformed, "{strange:?}");
        }
        assert_eq!(reply(500, &[(REPLY, "200"), (BYTES, "1"), sum]), Reply::Malformed);
    }

    #[test]
    fn an_answer_that_does_not_speak_of_the_key_says_nothing_of_it() {
        let key = |pairs: &[_]| relinquished(&headers(pairs));
        assert_eq!(key(&[(KEY, "invalidated")]), Relinquished::Invalidated);
        assert_eq!(key(&[(KEY, "quiet")]), Relinquished::Quiet);
        for unknown in [&[][..], &[(KEY, "dead")], &[(KEY, "quiet"), (KEY, "quiet")]] {
            assert_eq!(key(unknown), Relinquished::Unknown);
        }
    }

    proptest! {
        #[test]
        fn foreign_headers_never_panic(status in 100u16..1000, values in prop::collection::vec("[ -~]{0,40}", 7)) {
            let names = [REPLY, BYTES, KEY, PATH, STRENGTH, CHECKSUM, NODE];
            let pairs: Vec<_> = names.into_iter().zip(values.iter().map(String::as_str)).collect();
            let headers = headers(&pairs);
            let _ = Reply::of(StatusCode::from_u16(status).expect("a status"), &headers);
            let _ = relinquished(&headers);
        }
    }
}
