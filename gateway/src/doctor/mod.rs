//! What this machine offers, and what follows from it.
//!
//! Everything is tried rather than looked up: `O_DIRECT` with a write in the data directory,
//! io_uring and the store's own choice by opening a small store, RDMA ports by their self-test with
//! the host's memory and each GPU's.

mod gpu;
mod limits;
mod rdma;
mod store;

use std::fmt;
use std::path::Path;

use serde::Serialize;

/// How a finding is to be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Good,
    /// Works, but something better exists on other machines or with other settings.
    Fair,
    /// Will not work.
    Bad,
}

/// One thing that was looked at.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// What, for example `io_uring`.
    pub subject: &'static str,
    /// How it is.
    pub verdict: Verdict,
    /// What was found, in words.
    pub found: String,
    /// What would make it better, if anything would.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<&'static str>,
}

impl Finding {
    fn good(subject: &'static str, found: impl Into<String>) -> Self {
        Self { subject, verdict: Verdict::Good, found: found.into(), advice: None }
    }

    fn fair(subject: &'static str, found: impl Into<String>, advice: &'static str) -> Self {
        Self { subject, verdict: Verdict::Fair, found: found.into(), advice: Some(advice) }
    }

    fn bad(subject: &'static str, found: impl Into<String>, advice: &'static str) -> Self {
        Self { subject, verdict: Verdict::Bad, found: found.into(), advice: Some(advice) }
    }
}

/// All findings.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Version of this program.
    pub version: &'static str,
    /// What was looked at, in order.
    pub findings: Vec<Finding>,
    /// The path that a client on this host gets, and why not a better one.
    pub path: PathChoice,
    /// The same for GPU memory, where there is any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_path: Option<PathChoice>,
}

/// A path of the data, by the name that results carry.
#[derive(Clone, Debug, Serialize)]
pub struct PathChoice {
    /// For example `http`.
    pub name: &'static str,
    /// Why it is this one.
    pub because: String,
}

impl Report {
    /// Whether a server can run here.
    pub fn is_usable(&self) -> bool {
        self.findings.iter().all(|finding| finding.verdict != Verdict::Bad)
    }
}

/// Looks at this machine, and at the file system of `data_dir` (made where it is missing, and
/// removed again). `dc_key` says whether `node.rdma.dc_key` is set. Takes up to seconds; blocks.
pub async fn examine(data_dir: &Path, dc_key: bool) -> Report {
    let mut findings = vec![limits::kernel(), limits::cores()];
    findings.extend(store::examine(data_dir).await);
    findings.extend([limits::locked_memory(), limits::memory_tier()]);
    findings.extend([limits::descriptors(), limits::clock()]);
    let rdma::Found { ports, findings: rdma, path } = rdma::findings(dc_key).await;
    let (gpus, gpu_path) = gpu::findings(&ports).await;
    findings.extend(rdma);
    findings.extend(gpus);
    Report { version: env!("CARGO_PKG_VERSION"), findings, path, gpu_path }
}

/// An error with its causes, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "keyway {}", self.version)?;
        for finding in &self.findings {
            let mark = match finding.verdict {
                Verdict::Good => "ok  ",
                Verdict::Fair => "fair",
                Verdict::Bad => "BAD ",
            };
            writeln!(f, "  {mark}  {:<16} {}", finding.subject, finding.found)?;
            if let Some(advice) = finding.advice {
                writeln!(f, "        {:<16} {advice}", "")?;
            }
        }
        for path in std::iter::once(&self.path).chain(&self.gpu_path) {
            writeln!(f, "  path  {:<16} {}", path.name, path.because)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_machine_gets_a_report_and_its_directory_back() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        let report = examine(&data, false).await;
        assert!(!data.exists(), "the doctor leaves nothing behind");
        let subjects: Vec<&str> = report.findings.iter().map(|f| f.subject).collect();
        for wanted in ["kernel", "data directory", "store access", "memory tier", "GPUs"] {
            assert!(subjects.contains(&wanted), "{wanted} is missing from {subjects:?}");
        }
        assert!(report.is_usable(), "{report}");
        assert!(subjects.iter().any(|subject| subject.starts_with("RDMA")));
        let json = serde_json::to_value(&report).unwrap();
        let path = json["path"]["name"].as_str().unwrap();
        assert!(["http", "verbs-host"].contains(&path), "{path}");
    }

    #[tokio::test]
    async fn a_directory_that_cannot_be_written_is_bad() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(!examine(&file.join("data"), false).await.is_usable());
    }
}
