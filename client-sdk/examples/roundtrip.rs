//! Writes objects of several sizes to the endpoint given, reads them back, and cleans up.
//!
//! `KEYWAY_ACCESS_KEY=… KEYWAY_SECRET_KEY=… cargo run --example roundtrip -- http://host:port`

use std::error::Error;

use futures::TryStreamExt as _;
use keyway_client::{Client, Credentials, HostBuffer};

#[tokio::main]
#[expect(clippy::print_stdout, reason = "an example shows what it does")]
async fn main() -> Result<(), Box<dyn Error>> {
    let endpoint = std::env::args().nth(1).ok_or("usage: roundtrip ENDPOINT")?;
    let client =
        Client::builder().endpoint(endpoint).credentials(Credentials::from_env()?).build()?;
    let bucket = "keyway-roundtrip";
    client.create_bucket(bucket).await?;
    for bytes in [0, 5, 1 << 20, 40 << 20] {
        let mut source: HostBuffer =
            (0..bytes).map(|at| (at % 251) as u8).collect::<Vec<_>>().into();
        let key = format!("objects/{bytes} bytes+ü");
        let put = client.put_object(bucket, &key).body(source.slice(..)?).send().await?;
        println!("put {bytes}: {} parts, {}, {} retries", put.parts, put.verified, put.retries);

        let mut target = HostBuffer::zeroed(bytes)?;
        let got = client.get_object(bucket, &key).into(target.slice_mut(..)?).await?;
        println!("got {}: by {}, {}, {} retries", got.bytes, got.path, got.verified, got.retries);
        assert_eq!(&got.target[..], source.bytes()?);
        let got = client.get_object(bucket, &key).bytes().await?;
        assert_eq!(&got.target[..], source.bytes()?);
    }
    let keys: Vec<String> =
        client.list_objects(bucket).page_keys(2).objects().map_ok(|o| o.key).try_collect().await?;
    println!("listed {keys:?}");
    let failures = client.delete_objects(bucket, &keys).await?;
    assert!(failures.is_empty(), "{failures:?}");
    client.delete_bucket(bucket).await?;
    Ok(())
}
