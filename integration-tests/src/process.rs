//! `keyway` processes for tests that kill them: their logs stay whole, their counters can be
//! read, and what they hold can be waited for.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::server::binary;
use crate::wire::{Connection, Request};

/// What clients of these processes sign with.
pub const ACCESS_KEY: &str = "crash-tests";
/// Its secret, which no log may tell.
pub const SECRET_KEY: &str = "planted-secret-2b1f9c40d7";
/// How long counters may take to return: an adapter gives up on a silent peer after seconds, a
/// session is looked after every ten, and all of it is emulated.
const SETTLED_WITHIN: Duration = Duration::from_secs(60);
/// Between two looks at something that has no event to wait for.
const LOOK: Duration = Duration::from_millis(100);

/// A `keyway` process in a directory; its log goes to a file there. Killed when dropped.
pub struct Process {
    dir: PathBuf,
    name: &'static str,
    arguments: Vec<String>,
    child: Option<Child>,
    /// Where it answers.
    pub url: String,
    admin: String,
}

impl Process {
    /// Starts the binary in `dir` with these arguments and waits for its ready line.
    ///
    /// # Errors
    /// When it ends before that.
    pub fn start(dir: &Path, name: &'static str, arguments: Vec<String>) -> Result<Self> {
        let (url, admin) = (String::new(), String::new());
        let mut process = Self { dir: dir.to_owned(), name, arguments, child: None, url, admin };
        process.restart()?;
        Ok(process)
    }

    /// Starts it again after its end, and waits for its ready line.
    ///
    /// # Errors
    /// When it still runs, or ends before that.
    pub fn restart(&mut self) -> Result<()> {
        ensure!(self.child.is_none(), "it still runs");
        let log = File::options().create(true).append(true).open(self.log_file())?;
        let mut child = command(&self.dir)?
            .args(&self.arguments)
            .args(["--admin-listen=127.0.0.1:0", "--set=telemetry.access_log=all"])
            .env("KEYWAY_ROOT_ACCESS_KEY", ACCESS_KEY)
            .env("KEYWAY_ROOT_SECRET_KEY", SECRET_KEY)
            .env("NO_COLOR", "1")
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()?;
        let stdout = child.stdout.take().context("standard output is piped")?;
        self.child = Some(child);
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let said = line.strip_prefix("keyway ready: ").and_then(|said| {
            let mut words = said.split_whitespace();
            Some((words.next()?, words.next()?.strip_prefix("admin=http://")?))
        });
        let (url, admin) = said.with_context(|| {
            let log = self.log().unwrap_or_default();
            format!("{} said {line:?}; log:\n{}", self.name, tail(&log, 40))
        })?;
        (self.url, self.admin) = (url.to_owned(), admin.to_owned());
        Ok(())
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended already, which is as good.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Its id.
    ///
    /// # Errors
    /// When it does not run.
    pub fn pid(&self) -> Result<u32> {
        Ok(self.child.as_ref().context("it does not run")?.id())
    }

    /// SIGTERM, and the end of what is under way.
    ///
    /// # Errors
    /// When it does not run, or fails.
    pub fn terminate(&mut self) -> Result<()> {
        let mut child = self.child.take().context("it does not run")?;
        kill_process(Pid::from_child(&child), Signal::TERM)?;
        let status = child.wait()?;
        ensure!(status.success(), "{} ended with {status}", self.name);
        Ok(())
    }

    /// Whether it lives.
    pub fn lives(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// All that it has logged, over restarts.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn log(&self) -> Result<String> {
        Ok(std::fs::read_to_string(self.log_file())?)
    }

    fn log_file(&self) -> PathBuf {
        self.dir.join(format!("{}.log", self.name))
    }

    /// A metric's value, summed over its attributes.
    ///
    /// # Errors
    /// When the process does not answer, or there is no such metric.
    pub fn metric(&self, name: &str) -> Result<f64> {
        let mut connection = Connection::open(self.admin.parse()?)?;
        let request = Request::new("GET", "/metrics").header("host", &self.admin);
        let text = connection.exchange(&request)?.text();
        let values = text.lines().filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            let is_it = rest.starts_with(['{', ' ']);
            is_it.then(|| rest.rsplit(' ').next()?.parse::<f64>().ok()).flatten()
        });
        values.reduce(|sum, value| sum + value).with_context(|| format!("no metric {name}"))
    }

    /// Whether no transfer is under way or waits, and no buffer is leased.
    ///
    /// # Errors
    /// What is not so.
    pub fn is_settled(&self) -> Result<(), String> {
        for name in ["keyway_node_transfers", "keyway_node_waiting", "keyway_pool_leased_bytes"] {
            match self.metric(name) {
                Ok(0.0) => {}
                found => return Err(format!("{name} is {found:?}")),
            }
        }
        Ok(())
    }

    /// Waits until that is so.
    ///
    /// # Errors
    /// When it is not in time.
    pub async fn settles(&self) -> Result<()> {
        eventually(|| self.is_settled()).await
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A test that went well has asked it to end.
        if self.child.is_some() {
            let log = self.log().unwrap_or_default();
            // Standard error may be closed already; there is nobody left to tell then.
            let _ = writeln!(
                std::io::stderr(),
                "--- the end of {}'s log\n{}\n---",
                self.name,
                tail(&log, 40)
            );
        }
        self.kill();
    }
}

/// The last lines of a text.
pub fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// Waits until `check` finds what it wants, or fails with what it found last.
///
/// # Errors
/// What it found last.
pub async fn eventually(mut check: impl FnMut() -> Result<(), String>) -> Result<()> {
    let deadline = Instant::now() + SETTLED_WITHIN;
    loop {
        let Err(found) = check() else { return Ok(()) };
        ensure!(Instant::now() < deadline, "after {SETTLED_WITHIN:?}: {found}");
        tokio::time::sleep(LOOK).await;
    }
}

/// The binary in `dir`, without what the machine's environment would tell it.
///
/// # Errors
/// When there is none.
pub fn command(dir: &Path) -> Result<Command> {
    let mut command = Command::new(binary()?);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("KEYWAY_") {
            command.env_remove(name);
        }
    }
    command.current_dir(dir).stdin(Stdio::null());
    Ok(command)
}

/// `keyway serve`, with such settings: gateway, node and metadata in one process.
///
/// # Errors
/// As [`Process::start`].
pub fn serve(dir: &Path, settings: &[String]) -> Result<Process> {
    let mut arguments: Vec<String> =
        ["serve", "--data-dir=data", "--listen=127.0.0.1:0"].map(String::from).into();
    arguments.extend_from_slice(settings);
    Process::start(dir, "serve", arguments)
}

/// `keyway gateway` and `keyway node`, joined by mutual TLS.
pub struct Split {
    /// The gateway, with the metadata.
    pub gateway: Process,
    /// The node, with the bytes.
    pub node: Process,
}

impl Split {
    /// Starts both. The settings are the node's; the filter is that of both logs.
    ///
    /// # Errors
    /// As [`Process::start`].
    pub fn start(dir: &Path, settings: &[String], log_filter: &str) -> Result<Self> {
        let made = command(dir)?.args(["admin", "certs", "--dir", "pki"]).output()?;
        ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let identity = |name: &str| {
            [
                "--set=cluster.authority_file=pki/authority.pem".to_owned(),
                format!("--set=cluster.cert_file=pki/{name}.pem"),
                format!("--set=cluster.key_file=pki/{name}.key"),
            ]
        };
        // Both come back where they were.
        let (node_port, gateway_port) = (free_port()?, free_port()?);
        let mut arguments = vec![
            "node".to_owned(),
            "--data-dir=node".to_owned(),
            format!("--listen=127.0.0.1:{node_port}"),
            "--set=node.id=7".to_owned(),
        ];
        arguments.extend(identity("node"));
        arguments.extend_from_slice(settings);
        arguments.push(format!("--set=telemetry.log_filter={log_filter}"));
        let node = Process::start(dir, "node", arguments)?;
        let mut arguments = vec![
            "gateway".to_owned(),
            "--data-dir=gateway".to_owned(),
            format!("--listen=127.0.0.1:{gateway_port}"),
            format!("--set=cluster.nodes=[\"7=https://127.0.0.1:{node_port}\"]"),
            format!("--set=telemetry.log_filter={log_filter}"),
        ];
        arguments.extend(identity("gateway"));
        let gateway = Process::start(dir, "gateway", arguments)?;
        Ok(Self { gateway, node })
    }
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
