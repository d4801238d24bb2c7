//! What servers answer, byte by byte: the client fails or not, and never panics or hangs.
#![no_main]

use std::cell::RefCell;
use std::time::Duration;

use keyway_client::{Client, Credentials, RetryPolicy};
use libfuzzer_sys::fuzz_target;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

/// No answer of a few kilobytes takes longer than this.
const PATIENCE: Duration = Duration::from_secs(5);

struct World {
    runtime: Runtime,
    listener: TcpListener,
    client: Client,
}

thread_local! {
    static WORLD: RefCell<World> = RefCell::new(World::new());
}

impl World {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime needs nothing that is missing here");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("loopback");
        let address = listener.local_addr().expect("a bound socket has an address");
        let client = Client::builder()
            .endpoint(format!("http://{address}"))
            .credentials(Credentials::new("AKID", "secret"))
            .retry(RetryPolicy::NONE)
            .build()
            .expect("the client's configuration is valid");
        Self { runtime, listener, client }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&choice, answer)) = bytes.split_first() else { return };
    WORLD.with_borrow_mut(|world| {
        let World { runtime, listener, client } = world;
        runtime.block_on(async {
            let serve = async {
                loop {
                    let Ok((mut stream, _)) = listener.accept().await else { return };
                    let mut request = [0; 4096];
                    let _ = stream.read(&mut request).await;
                    let _ = stream.write_all(answer).await;
                    let _ = stream.shutdown().await;
                }
            };
            let ask = async {
                match choice % 4 {
                    0 => drop(client.list_objects("bucket").page(None).await),
                    1 => drop(client.get_object("bucket", "key").bytes().await),
                    2 => drop(client.delete_objects("bucket", ["a", "b"]).await),
                    _ => drop(client.head_bucket("bucket").await),
                }
            };
            tokio::select! {
                () = serve => {}
                done = tokio::time::timeout(PATIENCE, ask) => done.expect("the client hangs"),
            }
        });
    });
});
