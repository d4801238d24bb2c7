//! Goal: the SDK's `ObjectStore` is what users of the `object_store` crate expect.
//!
//! Method: that crate's own integration suite, against a real server.

use keyway_client::{Client, Credentials, KeywayStore};
use keyway_integration_tests::Server;
use object_store::integration;

/// A store over an empty bucket: the suite deletes whatever it finds.
async fn store(server: &Server) -> KeywayStore {
    let credentials = server.credentials();
    let client = Client::builder()
        .endpoint(server.url())
        .credentials(Credentials::new(&credentials.access_key, credentials.secret_key.as_str()))
        .build()
        .expect("a client");
    client.create_bucket("object-store").await.expect("created");
    KeywayStore::new(client, "object-store")
}

#[tokio::test(flavor = "multi_thread")]
async fn objects() {
    let server = Server::start().expect("the server starts");
    let store = store(&server).await;
    integration::put_get_delete_list(&store).await;
    integration::list_uses_directories_correctly(&store).await;
    integration::list_with_delimiter(&store).await;
    integration::list_with_offset_exclusivity(&store).await;
    integration::rename_and_copy(&store).await;
    integration::copy_rename_nonexistent_object(&store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn options() {
    let server = Server::start().expect("the server starts");
    let store = store(&server).await;
    integration::get_opts(&store).await;
    integration::put_opts(&store, true).await;
    integration::put_get_attributes(&store).await;
    integration::copy_if_not_exists(&store).await;
    let missing = integration::get_nonexistent_object(&store, None).await;
    assert!(matches!(missing, Err(object_store::Error::NotFound { .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn uploads() {
    let server = Server::start().expect("the server starts");
    let store = store(&server).await;
    integration::stream_get(&store).await;
    integration::multipart_out_of_order(&store).await;
    integration::multipart_race_condition(&store, true).await;
}
