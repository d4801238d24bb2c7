//! A `keyway serve` process on a data directory of its own.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::sigv4::Credentials;
use crate::wire::{Connection, Request};

/// How long a server may take to say that it is ready: recovery of a large directory on a
/// busy machine of two cores.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a drain may take before the test calls it a hang.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(40);
/// Lines of the server's log that are kept; the oldest go first.
const LOG_LINES_KEPT: usize = 20_000;

/// What the S3 listener speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// HTTP without TLS, on loopback.
    Plain,
    /// HTTPS with a certificate made for this run.
    Tls,
}

/// What a server is started with.
#[derive(Clone, Debug)]
pub struct Options {
    /// HTTP or HTTPS.
    pub transport: Transport,
    /// The data directory; a temporary one when `None`.
    pub data_dir: Option<PathBuf>,
    /// TOML given with `--config`, appended to what the harness itself sets as dotted keys.
    pub config: String,
    /// Further environment variables.
    pub environment: Vec<(String, String)>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            transport: Transport::Plain,
            data_dir: None,
            config: String::new(),
            environment: Vec::new(),
        }
    }
}

/// A running server, or a killed one that can be restarted on the same data.
///
/// Dropping it kills the process; when the test is failing, its log is printed first.
pub struct Server {
    options: Options,
    credentials: Credentials,
    data_dir: PathBuf,
    /// Certificate, key and configuration of this run; outlives restarts.
    scratch: TempDir,
    process: Option<Child>,
    url: String,
    admin: String,
    log: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// Starts a plaintext server in an empty directory.
    ///
    /// # Errors
    /// When the binary is missing or does not become ready.
    pub fn start() -> Result<Self> {
        Self::with(Options::default())
    }

    /// Starts a server with the options given.
    ///
    /// # Errors
    /// When the binary is missing or does not become ready.
    pub fn with(options: Options) -> Result<Self> {
        let scratch = tempfile::Builder::new().prefix("keyway-test-").tempdir()?;
        let data_dir = match &options.data_dir {
            Some(dir) => dir.clone(),
            None => scratch.path().join("data"),
        };
        let mut server = Self {
            options,
            credentials: Credentials::random(),
            data_dir,
            scratch,
            process: None,
            url: String::new(),
            admin: String::new(),
            log: Arc::default(),
        };
        server.spawn()?;
        Ok(server)
    }

    /// Starts the process again on the same data, with the same credentials. The port is new.
    ///
    /// # Errors
    /// When it does not become ready.
    ///
    /// # Panics
    /// When it is still running.
    pub fn restart(&mut self) -> Result<()> {
        assert!(self.process.is_none(), "the server is still running");
        self.spawn()
    }

    /// Ends the process at once (SIGKILL) and reaps it. A server that is not running stays so.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.process.take() {
            // The process may be gone already, which is as good.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Asks the process to drain (SIGTERM) and waits for its end.
    ///
    /// # Errors
    /// When it is not running, or does not end within the drain's bound.
    pub fn terminate(&mut self) -> Result<ExitStatus> {
        let mut child = self.process.take().context("the server is not running")?;
        kill_process(Pid::from_child(&child), Signal::TERM)?;
        let deadline = Instant::now() + DRAIN_TIMEOUT;
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            if Instant::now() > deadline {
                child.kill()?;
                child.wait()?;
                bail!("SIGTERM did not end the server in {DRAIN_TIMEOUT:?}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Whether the process is still alive.
    pub fn is_running(&mut self) -> bool {
        self.process.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// The URL from the ready line, without a trailing slash.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Host and port from the ready line.
    pub fn authority(&self) -> &str {
        self.url.split_once("://").map_or("", |(_, authority)| authority)
    }

    /// The listener's address.
    ///
    /// # Panics
    /// When the ready line named no socket address.
    pub fn address(&self) -> SocketAddr {
        self.authority().parse().expect("the ready line names an IP address and a port")
    }

    /// Its metrics, in Prometheus' text form.
    ///
    /// # Errors
    /// When the admin listener does not answer.
    pub fn metrics(&self) -> Result<String> {
        let request = Request::new("GET", "/metrics").header("host", &self.admin);
        Ok(Connection::open(self.admin.parse()?)?.exchange(&request)?.text())
    }

    /// The root credentials.
    pub fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    /// The data directory.
    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// The authority behind the TLS listener's certificate, in PEM, for clients to trust.
    pub fn certificate_file(&self) -> PathBuf {
        self.scratch.path().join("tls-authority.pem")
    }

    /// What the process has written to standard error so far, over all restarts.
    pub fn log(&self) -> String {
        self.log.lock().expect("no reader panics with the log").join("\n")
    }

    /// Its process id.
    ///
    /// # Errors
    /// When it is not running.
    pub fn pid(&self) -> Result<u32> {
        Ok(self.process.as_ref().context("the server is not running")?.id())
    }

    /// Resident memory of the process.
    ///
    /// # Errors
    /// When it is not running.
    pub fn resident_bytes(&self) -> Result<u64> {
        let child = self.process.as_ref().context("the server is not running")?;
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id()))?;
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).context("no VmRSS")?;
        let kib: u64 = line.split_whitespace().nth(1).context("no figure in VmRSS")?.parse()?;
        Ok(kib * 1024)
    }

    /// Starts the process on the same data and kills it after `life`, ready or not: a crash
    /// during recovery.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_and_kill(&mut self, life: Duration) -> Result<()> {
        let _ready_lines = self.launch()?;
        std::thread::sleep(life);
        self.kill();
        Ok(())
    }

    fn spawn(&mut self) -> Result<()> {
        let readiness = self.launch()?;
        let deadline = Instant::now() + READY_TIMEOUT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match readiness.recv_timeout(left) {
                Ok(line) => {
                    if let Some(url) = ready_url(&line) {
                        self.url = url;
                        self.admin = admin_authority(&line).unwrap_or_default();
                        return Ok(());
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    bail!("no ready line in {READY_TIMEOUT:?}; log:\n{}", self.log());
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let status = self.process.take().map(|mut child| child.wait());
                    bail!("the server ended before it was ready ({status:?}); log:\n{}", self.log())
                }
            }
        }
    }

    /// Starts the process; its lines on standard output arrive at the receiver.
    fn launch(&mut self) -> Result<mpsc::Receiver<String>> {
        let config = self.scratch.path().join("keyway.toml");
        std::fs::write(&config, self.configuration()?)?;
        let binary = binary()?;
        let mut command = Command::new(&binary);
        // The server refuses variables of its prefix that it does not know.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("KEYWAY_") {
                command.env_remove(name);
            }
        }
        let mut child = command
            .arg("serve")
            .arg("--data-dir")
            .arg(&self.data_dir)
            .args(["--listen", "127.0.0.1:0"])
            .arg("--config")
            .arg(&config)
            .env("KEYWAY_ROOT_ACCESS_KEY", &self.credentials.access_key)
            .env("KEYWAY_ROOT_SECRET_KEY", &self.credentials.secret_key)
            .env("NO_COLOR", "1")
            .envs(self.options.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {}", binary.display()))?;
        let stdout = child.stdout.take().context("standard output is piped")?;
        let stderr = child.stderr.take().context("standard error is piped")?;
        let log = Arc::clone(&self.log);
        std::thread::spawn(move || collect(stderr, &log));
        let (ready, readiness) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // After the ready line nobody listens, but the pipe must be drained.
                let _ = ready.send(line);
            }
        });
        self.process = Some(child);
        Ok(readiness)
    }

    fn configuration(&self) -> Result<String> {
        let mut toml = String::from("listen.admin_address = \"127.0.0.1:0\"\n");
        if self.options.transport == Transport::Tls {
            let certificate = self.certificate_file();
            let chain = self.scratch.path().join("tls-chain.pem");
            let key = self.scratch.path().join("tls-key.pem");
            if !certificate.exists() {
                issue(&certificate, &chain, &key)?;
            }
            writeln!(
                toml,
                "listen.tls = {{ mode = \"files\", cert_file = {chain:?}, key_file = {key:?} }}"
            )?;
        }
        toml.push_str(&self.options.config);
        Ok(toml)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let log = self.log();
            let tail = log.lines().rev().take(60).collect::<Vec<_>>();
            let tail = tail.into_iter().rev().collect::<Vec<_>>().join("\n");
            // Standard error may be closed already; there is nobody left to tell then.
            let _ = writeln!(std::io::stderr(), "--- the server's last log lines ---\n{tail}\n---");
        }
    }
}

/// The binary under test: `KEYWAY_BINARY`, else `keyway` beside this test's own executable.
///
/// # Errors
/// When there is none.
pub fn binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("KEYWAY_BINARY") {
        return Ok(path.into());
    }
    // target/<profile>/deps/<test> → target/<profile>/keyway
    let test = std::env::current_exe()?;
    let profile_dir = test.parent().and_then(Path::parent).context("no target directory")?;
    let path = profile_dir.join("keyway");
    if !path.exists() {
        bail!("{} is missing: run `make build` first, or set KEYWAY_BINARY", path.display());
    }
    Ok(path)
}

/// Makes an authority for this run, and a certificate under it for loopback.
fn issue(authority_file: &Path, chain_file: &Path, key_file: &Path) -> Result<()> {
    let mut authority = CertificateParams::new(Vec::new())?;
    authority.distinguished_name.push(DnType::CommonName, "Keyway test authority");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    let authority_key = KeyPair::generate()?;
    std::fs::write(authority_file, authority.self_signed(&authority_key)?.pem())?;
    let issuer = Issuer::new(authority, authority_key);

    let mut leaf = CertificateParams::new(["localhost".to_owned(), "127.0.0.1".to_owned()])?;
    leaf.distinguished_name.push(DnType::CommonName, "localhost");
    leaf.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate()?;
    std::fs::write(chain_file, leaf.signed_by(&key, &issuer)?.pem())?;
    // Readable by the owner alone: the server may insist.
    let mut file =
        std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(key_file)?;
    file.write_all(key.serialize_pem().as_bytes())?;
    Ok(())
}

fn ready_url(line: &str) -> Option<String> {
    let rest = line.strip_prefix("keyway ready: ")?;
    let url = rest.split_whitespace().next()?;
    url.starts_with("http").then(|| url.trim_end_matches('/').to_owned())
}

fn admin_authority(line: &str) -> Option<String> {
    let rest = line.split_once(" admin=http://")?.1;
    rest.split_whitespace().next().map(str::to_owned)
}

fn collect(stderr: impl Read, log: &Mutex<Vec<String>>) {
    for line in BufReader::new(stderr).lines().map_while(Result::ok) {
        let mut log = log.lock().expect("no reader panics with the log");
        if log.len() == LOG_LINES_KEPT {
            log.drain(..LOG_LINES_KEPT / 2);
        }
        log.push(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ready_line_names_the_first_url() {
        let url = ready_url("keyway ready: https://127.0.0.1:4711/ admin http://127.0.0.1:1");
        assert_eq!(url.as_deref(), Some("https://127.0.0.1:4711"));
        assert_eq!(ready_url("listening on http://127.0.0.1:1"), None);
    }
}
