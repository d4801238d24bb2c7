//! Names, ids, checksums and RDMA tokens: whatever parses prints as what was parsed.
#![no_main]

use keyway_proto::{
    BucketName, Checksum, ChecksumKind, ChunkId, ObjectKey, RdmaToken, SessionId, SessionToken,
    UploadId, VersionId,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(name) = text.parse::<BucketName>() {
        assert_eq!(&*name, text);
    }
    if let Ok(key) = text.parse::<ObjectKey>() {
        assert_eq!(&*key, text);
    }
    if let Ok(token) = text.parse::<RdmaToken>() {
        assert_eq!(token.encode(), text);
        assert!(!format!("{token:?}").contains(&text[..25]), "a token shows itself");
    }
    if let Ok(token) = text.parse::<SessionToken>() {
        assert_eq!(token.encode(), text);
        assert!(!format!("{token:?}").contains(&text[20..]), "a token shows itself");
    }
    if let Ok(id) = text.parse::<SessionId>() {
        assert_eq!(id.to_string(), text);
    }
    if let Ok(id) = text.parse::<VersionId>() {
        assert_eq!(VersionId::from_bytes(id.to_bytes()), id);
    }
    if let Ok(id) = text.parse::<UploadId>() {
        assert_eq!(id.to_string().parse(), Ok(id));
    }
    if let Ok(id) = text.parse::<ChunkId>() {
        assert_eq!(id.to_string().parse(), Ok(id));
    }
    for kind in [ChecksumKind::Crc32, ChecksumKind::Crc64Nvme, ChecksumKind::Sha256] {
        if let Some(checksum) = Checksum::from_base64(kind, text) {
            assert_eq!(checksum.to_base64(), text);
        }
    }
});
