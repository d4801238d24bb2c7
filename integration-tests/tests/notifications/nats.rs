//! A real NATS server with JetStream, where there is one; spoken to in its own words, which are
//! text.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use keyway_integration_tests::skip::skipped;
use keyway_integration_tests::wire::Request;
use serde_json::{Value, json};

use crate::receiver::Receiver;
use crate::scene::{config, document, put_document, rule, wait_metric, world};
use crate::world::{expect, refused};

const PATIENCE: Duration = Duration::from_secs(30);

/// A server in a directory of its own.
struct Nats {
    address: SocketAddr,
    process: Child,
}

impl Nats {
    /// None where there is no such program.
    fn start(address: SocketAddr, dir: &Path) -> Result<Option<Self>> {
        let Some(program) = program() else { return Ok(None) };
        let process = Command::new(program)
            .args(["-js", "-a", &address.ip().to_string(), "-p", &address.port().to_string()])
            .arg("-sd")
            .arg(dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let nats = Self { address, process };
        let deadline = Instant::now() + PATIENCE;
        while TcpStream::connect(address).is_err() {
            ensure!(Instant::now() < deadline, "nats-server does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(Some(nats))
    }

    /// Asks for something and gives the answer.
    fn ask(&self, subject: &str, question: &Value) -> Result<Value> {
        let stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut writer = stream;
        let question = question.to_string();
        write!(writer, "CONNECT {{\"verbose\":false}}\r\nSUB answer 1\r\n")?;
        write!(writer, "PUB {subject} answer {}\r\n{question}\r\n", question.len())?;
        loop {
            let mut line = String::new();
            ensure!(reader.read_line(&mut line)? > 0, "nats-server hangs up");
            if line.starts_with("PING") {
                write!(writer, "PONG\r\n")?;
            }
            if line.starts_with("MSG ") {
                let length = line.split_whitespace().last().context("a length")?.parse()?;
                let mut body = vec![0; length];
                reader.read_exact(&mut body)?;
                return Ok(serde_json::from_slice(&body)?);
            }
        }
    }

    fn make_stream(&self) -> Result<()> {
        let stream = json!({ "name": "events", "subjects": ["keyway.>"], "storage": "file" });
        let made = self.ask("$JS.API.STREAM.CREATE.events", &stream)?;
        ensure!(made.get("error").is_none(), "{made}");
        Ok(())
    }

    /// The messages of the stream, once so many are there.
    fn messages(&self, count: u64) -> Result<Vec<Value>> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let info = self.ask("$JS.API.STREAM.INFO.events", &json!({}))?;
            let there = info["state"]["messages"].as_u64().context("it counts")?;
            if there >= count {
                return (1..=there).map(|number| self.message(number)).collect();
            }
            ensure!(Instant::now() < deadline, "{there} of {count} messages");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn message(&self, number: u64) -> Result<Value> {
        let answer = self.ask("$JS.API.STREAM.MSG.GET.events", &json!({ "seq": number }))?;
        let data = answer["message"]["data"].as_str().with_context(|| answer.to_string())?;
        Ok(serde_json::from_slice(&BASE64_STANDARD.decode(data)?)?)
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn program() -> Option<PathBuf> {
    let mut dirs: Vec<PathBuf> =
        std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).collect();
    // Where Debian puts it, which is not on everybody's path.
    dirs.push("/usr/sbin".into());
    dirs.into_iter().map(|dir| dir.join("nats-server")).find(|path| path.is_file())
}

/// Goal: events stand in the stream, in order; a server without the stream is no target; one that
/// was down has them all when it is back.
#[test]
fn a_nats_stream_gets_events() -> Result<()> {
    let (address, dir) = (Receiver::nowhere()?, tempfile::tempdir()?);
    let Some(nats) = Nats::start(address, dir.path())? else {
        skipped("a_nats_stream_gets_events", "there is no nats-server");
        return Ok(());
    };
    let mut config = config("[notify]\nretry_max_ms = 500", &[]);
    config.push_str(&format!(
        "[notify.targets.stream]\nkind = \"nats\"\nurl = \"nats://{address}\"\n\
         subject = \"keyway.events\"\ntimeout_ms = 2000\n"
    ));
    let world = world(config)?;
    let mut s3 = world.root();
    expect(&s3.create_bucket("data")?, 200)?;
    let rules = document(&[rule("stream", &["ObjectCreated:*"], "")]);
    let rules = rules.replace(":webhook", ":nats");
    // Nobody takes the subject yet.
    refused(&put_document(&mut s3, "data", &rules)?, 400, "InvalidArgument")?;
    nats.make_stream()?;
    expect(&put_document(&mut s3, "data", &rules)?, 200)?;
    for n in 0..5 {
        expect(&s3.put("data", "k", &[b'x'; 9][..n])?, 200)?;
    }
    let messages = nats.messages(6)?;
    ensure!(messages[0]["Event"] == "s3:TestEvent", "{messages:#?}");
    drop(nats);
    for n in 5..9 {
        expect(&s3.put("data", "k", &[b'x'; 9][..n])?, 200)?;
    }
    wait_metric(&world.server, "keyway_notify_failed", "stream", |count| count > 0)?;
    let Some(nats) = Nats::start(address, dir.path())? else { bail!("nats-server went away") };
    let messages = nats.messages(10)?;
    let sizes: Vec<u64> = messages[1..]
        .iter()
        .filter_map(|message| message["Records"][0]["s3"]["object"]["size"].as_u64())
        .collect();
    ensure!(sizes == (0..9).collect::<Vec<u64>>(), "{sizes:?}");
    let told = s3.send(Request::new("GET", "/data").query("notification", ""))?.text();
    ensure!(told.contains("arn:keyway:sqs::stream:nats"), "{told}");
    Ok(())
}
