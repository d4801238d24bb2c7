//! Rate and processor time of many transfers at once through `LocalNode` over the file
//! store: what of a server's cost is the node's.

#![allow(missing_docs, clippy::print_stdout)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use keyway_dataplane::LocalNode;
use keyway_proto::{DataKey, GetPlan, Verification};
use rustix::time::{ClockId, clock_gettime};

mod load;

const CONCURRENCY: [usize; 3] = [1, 8, 64];

/// Bytes moved per measurement of large objects.
const LARGE_BYTES: usize = 1 << 30;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let (node, _dir) = load::node().await;
    for (name, length, transfers) in [
        ("4 KiB", 4 << 10, 20_000),
        ("1 MiB", 1 << 20, 1000),
        ("64 MiB", 64 << 20, LARGE_BYTES >> 26),
    ] {
        let bytes = Bytes::from((0..length).map(|at| (at * 7) as u8).collect::<Vec<_>>());
        let stored = Arc::new(load::put(&node, &bytes).await);
        for concurrency in CONCURRENCY.into_iter().filter(|concurrency| *concurrency <= transfers) {
            let each =
                transfers / concurrency / if concurrency == 1 { 4.min(transfers) } else { 1 };
            let source = bytes.clone();
            let put = move |node: Arc<LocalNode>| {
                let source = source.clone();
                async move {
                    let stored = load::put(&node, &source).await;
                    load::release(&node, &stored).await;
                }
            };
            measure(&node, "PUT", name, length, concurrency, each.max(1), put).await;
            let stored = Arc::clone(&stored);
            let get = move |node: Arc<LocalNode>| {
                let stored = Arc::clone(&stored);
                async move {
                    load::get(&node, &stored).await;
                }
            };
            measure(&node, "GET", name, length, concurrency, each.max(1), get).await;
        }
    }
    // What each way of comparing blocks costs; nothing of so long an object is in the tier.
    let bytes = Bytes::from(vec![0x5a; 64 << 20]);
    let stored = Arc::new(load::put(&node, &bytes).await);
    for verification in Verification::ALL {
        let stored = Arc::clone(&stored);
        let get = move |node: Arc<LocalNode>| {
            let plan = GetPlan { verification, ..load::get_plan(&stored) };
            async move {
                load::get_with(&node, plan).await;
            }
        };
        let name = format!("64 MiB, compared {verification}");
        measure(&node, "GET", &name, bytes.len(), 8, 4, get).await;
    }
    // What encryption costs, beside the same bytes without it.
    for key in [None, DataKey::from_slice(&[7; DataKey::BYTES])] {
        let name = if key.is_some() { "64 MiB, encrypted" } else { "64 MiB, as it is" };
        let (under, source) = (key.clone(), bytes.clone());
        let put = move |node: Arc<LocalNode>| {
            let (key, source) = (under.clone(), source.clone());
            async move {
                let stored = load::put_under(&node, key, &source).await;
                load::release(&node, &stored).await;
            }
        };
        let stored = Arc::new(load::put_under(&node, key, &bytes).await);
        let get = move |node: Arc<LocalNode>| {
            let stored = Arc::clone(&stored);
            async move {
                load::get(&node, &stored).await;
            }
        };
        for concurrency in [1, 8] {
            measure(&node, "PUT", name, bytes.len(), concurrency, 4, put.clone()).await;
            measure(&node, "GET", name, bytes.len(), concurrency, 4, get.clone()).await;
        }
    }
    println!("{:?}", node.stats());
    println!("peak memory {} KiB", peak_memory_kib());
    node.close().await;
}

async fn measure<F, T>(
    node: &Arc<LocalNode>,
    operation: &str,
    name: &str,
    length: usize,
    concurrency: usize,
    each: usize,
    transfer: F,
) where
    F: Fn(Arc<LocalNode>) -> T + Clone + Send + Sync + 'static,
    T: Future<Output = ()> + Send + 'static,
{
    let (started, cpu) = (Instant::now(), cpu_time());
    let mut tasks = Vec::new();
    for _ in 0..concurrency {
        let (node, transfer) = (Arc::clone(node), transfer.clone());
        tasks.push(tokio::spawn(async move {
            for _ in 0..each {
                transfer(Arc::clone(&node)).await;
            }
        }));
    }
    for task in tasks {
        task.await.expect("finished");
    }
    let (wall, cpu) = (started.elapsed(), cpu_time() - cpu);
    let count = (each * concurrency) as f64;
    let gib = count * length as f64 / (1u64 << 30) as f64;
    println!(
        "{operation} {name:>6} x{concurrency:<2} {:>9.0}/s {:>8.1} MiB/s {:>8.1} us CPU each {:>6.3} s CPU/GiB",
        count / wall.as_secs_f64(),
        gib * 1024.0 / wall.as_secs_f64(),
        cpu.as_secs_f64() * 1e6 / count,
        cpu.as_secs_f64() / gib,
    );
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn peak_memory_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("readable");
    let line = status.lines().find(|line| line.starts_with("VmHWM")).expect("known");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number")
}
