//! What sealing and accepting a grant costs on one core.

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use keyway_auth::grant::{Grant, GrantKey, GrantKeyId, Sealer, Verifier};
use keyway_proto::{NodeId, SessionId, TenantId};

const NOW_MS: u64 = 1_800_000_000_000;
const LIFE_MS: u64 = 10_000;
/// Grants in a second of the verifier's time, of which it remembers those of twelve seconds at most.
const GRANTS_A_SECOND: u128 = 100_000;
const PLAN: [u8; 100] = [7; 100];

/// The time at which the grant with this number is sealed.
fn now_ms(number: u128) -> u64 {
    NOW_MS + (number / (GRANTS_A_SECOND / 1000)) as u64
}

fn grant(number: u128) -> Grant<'static> {
    Grant {
        node: NodeId(1),
        session: SessionId(1),
        tenant: TenantId(1),
        expiry_ms: now_ms(number) + LIFE_MS,
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
    // Every grant is fresh, and time goes on, so that the cache forgets and never refuses.
    let mut verifier = Verifier::new(NodeId(1), std::slice::from_ref(&key));
    group.bench_function("accept", |b| {
        b.iter_batched(
            || {
                number += 1;
                (sealer.seal(&grant(number)), now_ms(number))
            },
            |(sealed, now_ms)| {
                verifier.accept(&sealed, now_ms).expect("a fresh grant");
            },
            BatchSize::SmallInput,
        );
    });
    group.finish();
}

criterion_group!(benches, grants);
criterion_main!(benches);
