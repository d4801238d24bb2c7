//! What signing costs per request.

use criterion::{Criterion, criterion_group, criterion_main};
use http::Request;
use keyway_auth::sigv4::{Payload, Signer};
use keyway_auth::{AccessKeyId, SecretKey};

fn sign(criterion: &mut Criterion) {
    let signer = Signer::new(
        AccessKeyId::new("AKIAIOSFODNN7EXAMPLE"),
        SecretKey::new("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".to_owned()),
        "us-east-1",
        "s3",
    );
    let now = jiff::Timestamp::UNIX_EPOCH;
    criterion.bench_function("sign a GET", |bench| {
        bench.iter(|| {
            let (mut parts, ()) = Request::get("http://127.0.0.1:9000/bucket/path/to/key")
                .header("x-amz-checksum-mode", "ENABLED")
                .body(())
                .expect("a request")
                .into_parts();
            signer.sign(&mut parts, Payload::Unsigned, now).expect("signs");
            parts
        });
    });
}

criterion_group!(benches, sign);
criterion_main!(benches);
