//! What sealing and accepting a grant costs on one core.

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use keyway_auth::grant::{Grant, GrantKey, GrantKeyId, Sealer, Verifier};
use keyway_proto::{NodeId, SessionId, TenantId};

const NOW_MS: u64 = 1_800_000_000_000;
const PLAN: [u8; 100] = [7; 100];

fn grant(number: u128) -> Grant<'static> {
    Grant {
        node: NodeId(1),
        session: SessionId(1),
        tenant: TenantId(1),
        expiry_ms: NOW_MS + 10_000,
        nonce: number.to_be_bytes(),
        plan: &PLAN,
    }
}

fn grants(c: &mut Criterion) {
    let key = GrantKey::new(GrantKeyId(1), [1; 32]);
    let sealer = Sealer::new(&key);
    let mut group = c.benchmark_group("grant");
    group.throughput(Throughput::Elements(1));
    let mut number = 0;
    group.bench_function("seal", |b| {
        b.iter(|| {
            number += 1;
            sealer.seal(&grant(number))
        });
    });
    // Every grant is fresh; past the cache's bound it refuses after the same work.
    let mut verifier = Verifier::new(NodeId(1), std::slice::from_ref(&key));
    group.bench_function("accept", |b| {
        let mut number = 0;
        b.iter_batched(
            || {
                number += 1;
                sealer.seal(&grant(number))
            },
            |sealed| verifier.accept(&sealed, NOW_MS).is_ok(),
            BatchSize::SmallInput,
        );
    });
    group.finish();
}

criterion_group!(benches, grants);
criterion_main!(benches);
