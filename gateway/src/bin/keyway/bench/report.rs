//! What was measured, in three forms: gdsio's line, JSON, and a table beside peers.

use std::collections::HashMap;
use std::time::Duration;

use keyway_client::{BodyPhases, Phases};
use serde_json::{Value, json};

use super::cell::{Operation, Travelled};
use super::sizes;
use super::tally::Measured;
use crate::memory::Memory;

const GIB: f64 = (1u64 << 30) as f64;
const MIB: f64 = (1u64 << 20) as f64;

impl Measured {
    fn seconds(&self) -> f64 {
        self.elapsed.as_secs_f64()
    }

    fn ops(&self) -> f64 {
        self.tally.latencies.count() as f64
    }

    pub(super) fn ops_per_second(&self) -> f64 {
        self.ops() / self.seconds()
    }

    /// Ranges per second, where a GET asks for several.
    fn ranges_per_second(&self) -> Option<f64> {
        self.cell.batch.map(|batch| self.ops_per_second() * batch.ranges as f64)
    }

    fn gib(&self) -> f64 {
        self.tally.bytes as f64 / GIB
    }

    pub(super) fn gib_per_second(&self) -> f64 {
        self.gib() / self.seconds()
    }

    /// CPU seconds per GiB; `None` where no bytes were moved.
    fn per_gib(&self, cpu: Duration) -> Option<f64> {
        (self.tally.bytes > 0).then(|| cpu.as_secs_f64() / self.gib())
    }

    /// CPU seconds per GiB of the client's processes, and of the server where it is known.
    pub(super) fn cpu_per_gib(&self) -> Option<f64> {
        self.per_gib(self.tally.cpu + self.server_cpu.unwrap_or_default())
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
        let data_kib = self.tally.bytes / 1024;
        let dataset_kib = self.dataset_bytes / 1024;
        let io_kib = match self.cell.operation {
            Operation::List => 0,
            Operation::Get | Operation::Put => self.cell.size / 1024,
        };
        let ranges = self.ranges_per_second();
        let ranges = ranges.map_or_else(String::new, |rate| format!(" Ranges: {rate:.0}/sec"));
        format!(
            "IoType: {io_type} XferType: {} Threads: {} DataSetSize: {data_kib}/{dataset_kib}(KiB) \
             IOSize: {io_kib}(KiB) Throughput: {:.6} GiB/sec, Avg_Latency: {:.6} usecs ops: {} \
             total_time {:.6} secs{ranges}",
            self.travelled().path.as_str().to_uppercase(),
            self.cell.workers_total(),
            self.gib_per_second(),
            self.tally.latencies.mean_us(),
            self.tally.latencies.count(),
            self.seconds(),
        )
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "target": self.target,
            "path": self.travelled().path,
            "strength": self.travelled().strength,
            "operation": self.cell.operation.name().to_lowercase(),
            "size": self.cell.size,
            "processes": self.cell.processes,
            "ranges_per_op": self.cell.batch.map(|batch| batch.ranges),
            "ranges_per_second": self.ranges_per_second(),
            "process_mib_per_second": self.shares.iter().map(|rate| rate / MIB).collect::<Vec<_>>(),
            "concurrency": self.cell.workers,
            "memory": self.places(),
            "seconds": self.seconds(),
            "ops": self.tally.latencies.count(),
            "ops_per_second": self.ops_per_second(),
            "mib_per_second": self.tally.bytes as f64 / MIB / self.seconds(),
            "mean_us": self.tally.latencies.mean_us(),
            "p50_us": self.tally.latencies.quantile_us(0.5),
            "p99_us": self.tally.latencies.quantile_us(0.99),
            "p999_us": self.tally.latencies.quantile_us(0.999),
            "transfer_phases_us": self.transfer_phases().map(HashMap::<_, _>::from_iter),
            "body_phases_us": self.body_phases().map(HashMap::<_, _>::from_iter),
            "bytes": self.tally.bytes,
            "verified_bytes": self.tally.verified_bytes,
            "compared_bytes": self.compared_bytes,
            "memory_bytes": self.tally.memory_bytes,
            "client_cpu_us_per_op": self.cpu_us_per_op(self.tally.cpu),
            "client_cpu_seconds_per_gib": self.per_gib(self.tally.cpu),
            "server_cpu_us_per_op": self.server_cpu.map(|cpu| self.cpu_us_per_op(cpu)),
            "server_cpu_seconds_per_1000_ops":
                self.server_cpu.map(|cpu| cpu.as_secs_f64() * 1e3 / self.ops()),
            "server_cpu_seconds_per_gib": self.server_cpu.and_then(|cpu| self.per_gib(cpu)),
            "server_peak_rss_mib": self.server_peak_bytes.map(|bytes| bytes as f64 / MIB),
        })
    }

    /// Where the time of a transfer past HTTP went, in µs on average; none where there was none.
    fn transfer_phases(&self) -> Option<Vec<(&'static str, f64)>> {
        let names = Phases::default().parts().map(|(name, _)| name);
        Some(names.into_iter().zip(self.tally.transfers.mean_us()?).collect())
    }

    /// The same of a body that was read over HTTP.
    fn body_phases(&self) -> Option<Vec<(&'static str, f64)>> {
        let names = BodyPhases::default().parts().map(|(name, _)| name);
        Some(names.into_iter().zip(self.tally.bodies.mean_us()?).collect())
    }

    /// Both as lines.
    pub(super) fn breakdown(&self) -> impl Iterator<Item = String> {
        let line = |what: &str, parts: Vec<(&str, f64)>| {
            let parts: Vec<_> = parts.iter().map(|(name, us)| format!("{name} {us:.1}")).collect();
            format!("of a {what}, µs on average: {}", parts.join(", "))
        };
        let transfer = self.transfer_phases().map(|parts| line("transfer", parts));
        let body = self.body_phases().map(|parts| line("body", parts));
        transfer.into_iter().chain(body)
    }

    /// What a line of the plot is called: all but the size.
    pub(super) fn series(&self) -> String {
        let (operation, concurrency) = (self.cell.operation.name(), self.concurrency());
        format!("{}, {operation}, {concurrency} in flight", self.target)
    }

    fn travelled(&self) -> Travelled {
        self.tally.travelled.unwrap_or(Travelled::HTTP)
    }

    /// Where objects were held.
    fn places(&self) -> String {
        self.memory.iter().map(Memory::to_string).collect::<Vec<_>>().join(",")
    }

    /// What a cell is called.
    fn label(&self) -> String {
        let place = match self.places() {
            host if host == Memory::Host.to_string() => String::new(),
            other => format!(" {other}"),
        };
        match self.cell.operation {
            Operation::Get if let Some(batch) = self.cell.batch => {
                format!("GET {}x{}{place}", batch.ranges, sizes::shown(self.cell.size))
            }
            Operation::List => format!("LIST 1000 of {}", self.cell.size),
            operation => format!("{} {}{place}", operation.name(), sizes::shown(self.cell.size)),
        }
    }

    /// Requests in flight: of each process, where there are several.
    fn concurrency(&self) -> String {
        match self.cell.processes {
            1 => self.cell.workers.to_string(),
            processes => format!("{processes}×{}", self.cell.workers),
        }
    }
}

/// All results side by side: a line for each service in each cell, and for peers how many
/// times as much the first one does.
pub(super) fn table(results: &[Measured]) -> String {
    let mut text = format!(
        "{:<22} {:>5} {:<18} {:>9} {:>9} {:>9} {:>9} {:>10} {:>10} {:>9} {:>8} {:>7}\n",
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
    for (index, result) in results.iter().enumerate() {
        let ours = results[..index].iter().find(|other| other.cell == result.cell);
        let ratio = ours.map(|ours| ours.ops_per_second() / result.ops_per_second());
        let server_s_per_gib = result.server_cpu.and_then(|cpu| result.per_gib(cpu));
        text.push_str(&format!(
            "{:<22} {:>5} {:<18} {:>9.0} {:>9.1} {:>9.0} {:>9.0} {:>10} {:>10} {:>9.1} {:>8} {:>7}\n",
            result.label(),
            result.concurrency(),
            result.target,
            result.ops_per_second(),
            result.tally.bytes as f64 / MIB / result.seconds(),
            result.tally.latencies.quantile_us(0.5),
            result.tally.latencies.quantile_us(0.99),
            shown(result.server_cpu.map(|cpu| result.cpu_us_per_op(cpu)), 1),
            shown(server_s_per_gib, 3),
            result.cpu_us_per_op(result.tally.cpu),
            shown(result.server_peak_bytes.map(|bytes| bytes as f64 / MIB), 0),
            shown(ratio, 2),
        ));
    }
    text
}

/// The same for a document: a row for each size of each line.
pub(super) fn markdown(results: &[Measured]) -> String {
    let mut text = "\
| line | size | path | GiB/s | op/s | p50 µs | p99 µs | client CPU s/GiB | server CPU s/GiB |
|---|---|---|---|---|---|---|---|---|
"
    .to_owned();
    for result in results {
        text.push_str(&format!(
            "| {} | {} | {} | {:.3} | {:.0} | {:.0} | {:.0} | {} | {} |\n",
            result.series(),
            sizes::shown(result.cell.size),
            result.travelled().path,
            result.gib_per_second(),
            result.ops_per_second(),
            result.tally.latencies.quantile_us(0.5),
            result.tally.latencies.quantile_us(0.99),
            shown(result.per_gib(result.tally.cpu), 3),
            shown(result.server_cpu.and_then(|cpu| result.per_gib(cpu)), 3),
        ));
    }
    text
}

fn shown(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
}
