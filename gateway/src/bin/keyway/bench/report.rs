//! What was measured, in three forms: gdsio's line, JSON, and a table beside peers.

use std::time::Duration;

use serde_json::{Value, json};

use super::load::{Measured, Operation};
use crate::memory::Memory;

const GIB: f64 = (1u64 << 30) as f64;
const MIB: f64 = (1u64 << 20) as f64;

impl Measured {
    fn seconds(&self) -> f64 {
        self.elapsed.as_secs_f64()
    }

    fn ops(&self) -> f64 {
        self.latencies.count() as f64
    }

    pub(super) fn ops_per_second(&self) -> f64 {
        self.ops() / self.seconds()
    }

    fn gib(&self) -> f64 {
        self.bytes as f64 / GIB
    }

    /// µs of CPU per operation.
    fn cpu_us_per_op(&self, cpu: Duration) -> f64 {
        cpu.as_secs_f64() * 1e6 / self.ops()
    }

    /// The result line of gdsio, so that its readers read ours.
    pub(super) fn gdsio(&self) -> String {
        let io_type = match self.cell.operation {
            Operation::Get => "READ",
            Operation::Put => "WRITE",
            Operation::List => "LIST",
        };
        let data_kib = self.bytes / 1024;
        let dataset_kib = self.dataset_bytes / 1024;
        let io_kib = match self.cell.operation {
            Operation::List => 0,
            Operation::Get | Operation::Put => self.cell.size / 1024,
        };
        format!(
            "IoType: {io_type} XferType: {} Threads: {} DataSetSize: {data_kib}/{dataset_kib}(KiB) \
             IOSize: {io_kib}(KiB) Throughput: {:.6} GiB/sec, Avg_Latency: {:.6} usecs ops: {} \
             total_time {:.6} secs",
            self.travelled.path.as_str().to_uppercase(),
            self.cell.workers,
            self.gib() / self.seconds(),
            self.latencies.mean_us(),
            self.latencies.count(),
            self.seconds(),
        )
    }

    pub(super) fn json(&self) -> Value {
        let per_gib = |cpu: Duration| (self.bytes > 0).then(|| cpu.as_secs_f64() / self.gib());
        json!({
            "target": self.target,
            "path": self.travelled.path,
            "strength": self.travelled.strength,
            "operation": format!("{:?}", self.cell.operation).to_lowercase(),
            "size": self.cell.size,
            "concurrency": self.cell.workers,
            "memory": self.cell.memory.to_string(),
            "seconds": self.seconds(),
            "ops": self.latencies.count(),
            "ops_per_second": self.ops_per_second(),
            "mib_per_second": self.bytes as f64 / MIB / self.seconds(),
            "mean_us": self.latencies.mean_us(),
            "p50_us": self.latencies.quantile_us(0.5),
            "p99_us": self.latencies.quantile_us(0.99),
            "bytes": self.bytes,
            "verified_bytes": self.verified_bytes,
            "memory_bytes": self.memory_bytes,
            "client_cpu_us_per_op": self.cpu_us_per_op(self.client_cpu),
            "client_cpu_seconds_per_gib": per_gib(self.client_cpu),
            "server_cpu_us_per_op": self.server_cpu.map(|cpu| self.cpu_us_per_op(cpu)),
            "server_cpu_seconds_per_1000_ops":
                self.server_cpu.map(|cpu| cpu.as_secs_f64() * 1e3 / self.ops()),
            "server_cpu_seconds_per_gib": self.server_cpu.and_then(per_gib),
            "server_peak_rss_mib": self.server_peak_bytes.map(|bytes| bytes as f64 / MIB),
        })
    }

    /// What a cell is called.
    fn label(&self) -> String {
        let place = match self.cell.memory {
            Memory::Host => String::new(),
            gpu => format!(" {gpu}"),
        };
        match self.cell.operation {
            Operation::Get => format!("GET {}{place}", size(self.cell.size)),
            Operation::Put => format!("PUT {}{place}", size(self.cell.size)),
            Operation::List => format!("LIST 1000 of {}", self.cell.size),
        }
    }
}

/// All results side by side: a line for each service in each cell, and for peers how many
/// times as much the first one does.
pub(super) fn table(results: &[Measured]) -> String {
    let mut text = format!(
        "{:<22} {:>5} {:<12} {:>9} {:>9} {:>9} {:>9} {:>10} {:>10} {:>9} {:>8} {:>7}\n",
        "operation",
        "conc",
        "service",
        "op/s",
        "MiB/s",
        "p50 µs",
        "p99 µs",
        "srv µs/op",
        "srv s/GiB",
        "cli µs/op",
        "RSS MiB",
        "ours/×"
    );
    let shown = |value: Option<f64>, digits: usize| {
        value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
    };
    for (index, result) in results.iter().enumerate() {
        let same_cell = |other: &&Measured| {
            (other.cell.operation, other.cell.size, other.cell.workers)
                == (result.cell.operation, result.cell.size, result.cell.workers)
        };
        let ours = results[..index].iter().find(same_cell);
        let ratio = ours.map(|ours| ours.ops_per_second() / result.ops_per_second());
        let server_s_per_gib =
            result.server_cpu.filter(|_| result.bytes > 0).map(|c| c.as_secs_f64() / result.gib());
        text.push_str(&format!(
            "{:<22} {:>5} {:<12} {:>9.0} {:>9.1} {:>9.0} {:>9.0} {:>10} {:>10} {:>9.1} {:>8} {:>7}\n",
            result.label(),
            result.cell.workers,
            result.target,
            result.ops_per_second(),
            result.bytes as f64 / MIB / result.seconds(),
            result.latencies.quantile_us(0.5),
            result.latencies.quantile_us(0.99),
            shown(result.server_cpu.map(|cpu| result.cpu_us_per_op(cpu)), 1),
            shown(server_s_per_gib, 3),
            result.cpu_us_per_op(result.client_cpu),
            shown(result.server_peak_bytes.map(|bytes| bytes as f64 / MIB), 0),
            shown(ratio, 2),
        ));
    }
    text
}

fn size(bytes: u64) -> String {
    for (unit, name) in [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")] {
        if bytes >= unit && bytes.is_multiple_of(unit) {
            return format!("{} {name}", bytes / unit);
        }
    }
    format!("{bytes} B")
}
