//! What a case is, how it is sent, and the world it is sent into.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use keyway_integration_tests::seed::payload;
use keyway_integration_tests::sigv4::{Credentials, Signer};
use keyway_integration_tests::wire::{Connection, Request, Response};
use keyway_integration_tests::{S3, Server};

/// The bucket that the table aims at.
pub(crate) const BUCKET: &str = "malformed";
/// An object in it that nothing may touch.
pub(crate) const WHOLE: &str = "whole";
/// That object's length.
pub(crate) const WHOLE_BYTES: usize = 100_000;

/// A request and what must come of it.
pub(crate) struct Case {
    /// What is wrong with it.
    pub(crate) name: String,
    /// What goes on the wire.
    pub(crate) send: Box<dyn Fn(&World) -> Script>,
    /// What must come back.
    pub(crate) expect: Expect,
}

/// What goes on the wire, step by step.
pub(crate) struct Script {
    pub(crate) steps: Vec<Step>,
    pub(crate) to_head: bool,
}

/// One thing that a peer does.
pub(crate) enum Step {
    /// Sends bytes; a peer that has answered and closed already is no failure.
    Send(Vec<u8>),
    /// Sends bytes one at a time with a pause after each, until the server closes.
    Dribble(Vec<u8>, Duration),
    /// Ends the sending direction.
    HangUp,
}

/// What must come back.
#[derive(Clone, Debug)]
pub(crate) enum Expect {
    /// This status, and this S3 code in the body; an empty code stands for answers that the
    /// HTTP layer gives, which have no XML.
    Refused(u16, &'static str),
    /// A client error, or no answer at all: the peer has gone, or never spoke HTTP.
    RefusedOrClosed,
}

pub(crate) fn refused(
    name: impl Into<String>,
    status: u16,
    code: &'static str,
    send: impl Fn(&World) -> Request + 'static,
) -> Case {
    Case {
        name: name.into(),
        send: Box::new(move |world| Script::of(&send(world))),
        expect: Expect::Refused(status, code),
    }
}

pub(crate) fn scripted(
    name: impl Into<String>,
    expect: Expect,
    send: impl Fn(&World) -> Vec<Step> + 'static,
) -> Case {
    Case {
        name: name.into(),
        send: Box::new(move |world| Script { steps: send(world), to_head: false }),
        expect,
    }
}

impl Script {
    fn of(request: &Request) -> Self {
        Self { steps: vec![Step::Send(request.bytes())], to_head: request.method == "HEAD" }
    }
}

impl Case {
    /// Sends it and compares.
    pub(crate) fn run(&self, world: &World) -> Result<(), String> {
        let script = (self.send)(world);
        let outcome = world.play(&script);
        match (&self.expect, outcome) {
            (Expect::Refused(status, code), Ok(response)) => {
                let found = response.code().unwrap_or_default();
                let fits = response.status == *status && (found == *code || script.to_head);
                fits.then_some(()).ok_or_else(|| {
                    format!("expected {status} {code}, got {} {found}", response.status)
                })
            }
            (Expect::RefusedOrClosed, Ok(response)) if !(400..500).contains(&response.status) => {
                Err(format!("expected a refusal, got {} {}", response.status, response.text()))
            }
            (Expect::Refused(..), Err(error)) => Err(format!("no answer: {error}")),
            (Expect::RefusedOrClosed, Err(error))
                if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) =>
            {
                Err("the server neither answered nor closed".to_owned())
            }
            (Expect::RefusedOrClosed, _) => Ok(()),
        }
    }
}

/// The server, and what was stored before the table began.
pub(crate) struct World {
    pub(crate) address: SocketAddr,
    pub(crate) credentials: Credentials,
    /// An upload of key `upload` with one part of 5 MiB and one of 1 KiB.
    pub(crate) upload: String,
    /// The parts' ETags.
    pub(crate) parts: [String; 2],
}

impl World {
    pub(crate) fn new(server: &Server) -> Self {
        let mut s3 = S3::of(server);
        assert_eq!(s3.create_bucket(BUCKET).unwrap().status, 200);
        assert_eq!(s3.put(BUCKET, WHOLE, &whole()).unwrap().status, 200);
        let upload = s3.create_upload(BUCKET, "upload").unwrap();
        let large = s3.put_part(BUCKET, "upload", &upload, 1, &payload(1, 5 << 20)).unwrap();
        let small = s3.put_part(BUCKET, "upload", &upload, 2, &payload(2, 1 << 10)).unwrap();
        Self {
            address: server.address(),
            credentials: server.credentials().clone(),
            upload,
            parts: [large, small],
        }
    }

    /// A request for an object of the bucket, with its `host`.
    pub(crate) fn object(&self, method: &str, key: &str) -> Request {
        Request::object(method, BUCKET, key).header("host", self.address.to_string())
    }

    /// A request for any path, with its `host`.
    pub(crate) fn path(&self, method: &str, path: &str) -> Request {
        Request::new(method, path).header("host", self.address.to_string())
    }

    pub(crate) fn signer(&self) -> Signer {
        Signer::new(&self.credentials)
    }

    /// Signs the request as it should be.
    pub(crate) fn signed(&self, mut request: Request) -> Request {
        self.signer().sign(&mut request);
        request
    }

    pub(crate) fn keys(&self) -> Vec<String> {
        S3::at(self.address, &self.credentials).keys(BUCKET).unwrap()
    }

    pub(crate) fn uploads(&self) -> Vec<(String, String)> {
        S3::at(self.address, &self.credentials).uploads(BUCKET).unwrap()
    }

    pub(crate) fn uploads_at_start(&self) -> Vec<(String, String)> {
        vec![("upload".to_owned(), self.upload.clone())]
    }

    pub(crate) fn assert_canary(&self) {
        let response = S3::at(self.address, &self.credentials).get(BUCKET, WHOLE).unwrap();
        assert_eq!(response.status, 200);
        assert!(response.body == whole(), "the object that nothing may touch was touched");
    }

    fn play(&self, script: &Script) -> io::Result<Response> {
        let mut connection = Connection::open(self.address)?;
        for step in &script.steps {
            match step {
                // The answer, if any, is read below even when the peer closed meanwhile.
                Step::Send(bytes) => drop(connection.write(bytes)),
                Step::HangUp => drop(connection.hang_up()),
                Step::Dribble(bytes, pause) => {
                    for byte in bytes {
                        if connection.write(&[*byte]).is_err() {
                            break;
                        }
                        std::thread::sleep(*pause);
                    }
                }
            }
        }
        connection.read_response(script.to_head)
    }
}

fn whole() -> Vec<u8> {
    payload(7, WHOLE_BYTES)
}
