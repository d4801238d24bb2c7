//! Latency of one transfer at a time through `LocalNode` over the file store.

#![allow(missing_docs)]

use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

mod load;

const SIZES: [(&str, usize); 3] = [("4KiB", 4 << 10), ("1MiB", 1 << 20), ("16MiB", 16 << 20)];

fn transfers(criterion: &mut Criterion) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let (node, _dir) = runtime.block_on(load::node());
    for (name, length) in SIZES {
        let bytes = Bytes::from(vec![0xa5; length]);
        let mut group = criterion.benchmark_group(name);
        group.throughput(Throughput::Bytes(length as u64));
        let stored = runtime.block_on(load::put(&node, &bytes));
        group.bench_function("get", |bencher| {
            bencher.to_async(&runtime).iter(|| load::get(&node, &stored));
        });
        group.bench_function("put", |bencher| {
            bencher.to_async(&runtime).iter(|| async {
                let stored = load::put(&node, &bytes).await;
                load::release(&node, &stored).await;
            });
        });
        group.finish();
    }
    runtime.block_on(node.close());
}

criterion_group!(benches, transfers);
criterion_main!(benches);
