//! The operations that sequences are made of.

use proptest::prelude::*;
use proptest::sample::select;

/// Keys that meet every corner of ordering, delimiters and encoding, and few enough that
/// operations meet each other.
pub(crate) const KEYS: [&str; 16] = [
    "a",
    "a/",
    "a/b",
    "a/b/c",
    "a//b",
    "a/b0",
    "a b",
    "a&b<c>",
    "a%2Fb",
    "A",
    "b/1",
    "b/2",
    "b/3/4",
    "ü",
    "z\u{10ffff}",
    "+",
];

/// Lengths on both sides of the boundaries between inline, small and large objects, and of
/// checksum blocks.
const LENGTHS: [usize; 10] = [0, 1, 100, 4_095, 4_096, 4_097, 65_536, 65_537, 300_000, 1_100_000];

/// One request.
#[derive(Clone, Debug)]
pub(crate) enum Operation {
    Put {
        key: &'static str,
        length: usize,
        seed: u64,
        owner: Option<u8>,
        when: When,
    },
    Get {
        key: &'static str,
        range: Span,
        when: When,
    },
    Head {
        key: &'static str,
    },
    Delete {
        key: &'static str,
    },
    DeleteMany {
        keys: Vec<&'static str>,
    },
    Copy {
        from: &'static str,
        to: &'static str,
        replace: Option<u8>,
    },
    List {
        version: u8,
        prefix: &'static str,
        delimiter: &'static str,
        page: usize,
        after: Option<&'static str>,
    },
    CreateUpload {
        key: &'static str,
    },
    PutPart {
        upload: usize,
        number: u32,
        length: usize,
        seed: u64,
    },
    Complete {
        upload: usize,
    },
    Abort {
        upload: usize,
    },
    ListParts {
        upload: usize,
    },
    ListUploads,
    /// Has the bucket keep versions, or no more of them.
    Keep {
        enabled: bool,
    },
    GetVersion {
        key: &'static str,
        nth: usize,
    },
    DeleteVersion {
        key: &'static str,
        nth: usize,
    },
    ListVersions {
        prefix: &'static str,
        page: usize,
    },
}

/// A condition on the object's ETag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    Always,
    Matches,
    MatchesAnother,
    NoneMatches,
    NoneMatchesAnother,
    NoneExists,
}

/// A `Range` header.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Span {
    All,
    FromTo(usize, usize),
    From(usize),
    Last(usize),
}

pub(crate) fn any_operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        8 => (key(), length(), any::<u64>(), proptest::option::of(0..3_u8), when())
            .prop_map(|(key, length, seed, owner, when)| Operation::Put { key, length, seed, owner, when }),
        6 => (key(), span(), when()).prop_map(|(key, range, when)| Operation::Get { key, range, when }),
        1 => key().prop_map(|key| Operation::Head { key }),
        3 => key().prop_map(|key| Operation::Delete { key }),
        1 => proptest::collection::vec(key(), 1..6).prop_map(|keys| Operation::DeleteMany { keys }),
        2 => (key(), key(), proptest::option::of(0..3_u8))
            .prop_map(|(from, to, replace)| Operation::Copy { from, to, replace }),
        5 => list(),
        2 => key().prop_map(|key| Operation::CreateUpload { key }),
        3 => (0..4_usize, 1..4_u32, length(), any::<u64>())
            .prop_map(|(upload, number, length, seed)| Operation::PutPart { upload, number, length, seed }),
        2 => (0..4_usize).prop_map(|upload| Operation::Complete { upload }),
        1 => (0..4_usize).prop_map(|upload| Operation::Abort { upload }),
        1 => (0..4_usize).prop_map(|upload| Operation::ListParts { upload }),
        1 => Just(Operation::ListUploads),
        1 => proptest::bool::weighted(0.7).prop_map(|enabled| Operation::Keep { enabled }),
        2 => (key(), 0..4_usize).prop_map(|(key, nth)| Operation::GetVersion { key, nth }),
        2 => (key(), 0..4_usize).prop_map(|(key, nth)| Operation::DeleteVersion { key, nth }),
        2 => (select(&["", "a", "a/", "b/"][..]), select(&[1, 2, 3, 1_000][..]))
            .prop_map(|(prefix, page)| Operation::ListVersions { prefix, page }),
    ]
}

fn key() -> impl Strategy<Value = &'static str> {
    select(&KEYS[..])
}

fn length() -> impl Strategy<Value = usize> {
    prop_oneof![3 => select(&LENGTHS[..]), 1 => 0..200_000_usize]
}

fn when() -> impl Strategy<Value = When> {
    prop_oneof![
        6 => Just(When::Always),
        1 => Just(When::Matches),
        1 => Just(When::MatchesAnother),
        1 => Just(When::NoneMatches),
        1 => Just(When::NoneMatchesAnother),
        1 => Just(When::NoneExists),
    ]
}

fn span() -> impl Strategy<Value = Span> {
    prop_oneof![
        3 => Just(Span::All),
        3 => (0..300_000_usize, 0..100_000_usize).prop_map(|(from, more)| Span::FromTo(from, from + more)),
        1 => (0..9_usize, 0..9_usize).prop_map(|(from, more)| Span::FromTo(from, from + more)),
        1 => (0..300_000_usize).prop_map(Span::From),
        1 => (0..100_000_usize).prop_map(Span::Last),
    ]
}

fn list() -> impl Strategy<Value = Operation> {
    let prefix = select(&["", "a", "a/", "a/b", "b/", "ü", "nothing"][..]);
    let delimiter = select(&["", "", "/", "b", "/b"][..]);
    let page = select(&[1, 2, 3, 5, 1_000][..]);
    (1..=2_u8, prefix, delimiter, page, proptest::option::weighted(0.3, key())).prop_map(
        |(version, prefix, delimiter, page, after)| Operation::List {
            version,
            prefix,
            delimiter,
            page,
            // Where a page may begin inside of a rolled-up group, S3 does not say what comes.
            after: after.filter(|_| delimiter.is_empty()),
        },
    )
}
