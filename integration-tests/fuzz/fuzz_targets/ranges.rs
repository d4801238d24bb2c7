//! Documents of ranges: what is understood is written the same way, and lands in its own place.
#![no_main]

use keyway_proto::RangesRequest;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(request) = RangesRequest::parse(bytes) else { return };
    let (mut end, mut sum) = (0, 0);
    for placed in request.ranges() {
        assert!(!placed.range.is_empty());
        assert!(u64::from(placed.at) >= end, "ranges meet in memory");
        end = u64::from(placed.at) + placed.range.length();
        sum += placed.range.length();
    }
    assert_eq!((request.memory(), request.bytes()), (end, sum));
    let (bucket, key, etag) = (request.bucket(), request.key(), request.etag());
    let again = RangesRequest::encode(bucket, key, etag, request.ranges());
    assert_eq!(again.as_deref(), Ok(bytes));
});
