//! Clients, objects and listings.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::ffi::{CString, c_char};
use std::time::Duration;

use keyway_bindings::{Connection, Failure, Listed, Listing, Place, Settings, head};
use keyway_proto::ChecksumKind;

use crate::abi::{self, KeywayClientOptions, KeywayEntry, KeywayError, KeywayObject};
use crate::border::{
    Fault, chars, give, handle, read, small_call, take, text, wait, write, zeroed,
};

/// A client.
pub struct KeywayClient {
    pub(crate) connection: Connection,
}

/// A listing under way.
pub struct KeywayListing {
    listing: Listing,
    ready: VecDeque<Listed>,
    key: CString,
}

/// The ABI's version.
#[unsafe(no_mangle)]
pub extern "C" fn keyway_abi_version() -> u32 {
    1
}

/// Makes a client.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keyway_client_open(
    options: *const KeywayClientOptions,
    client: *mut *mut KeywayClient,
    error: *mut KeywayError,
) -> i32 {
    let work = || {
        // SAFETY: the header asks for it.
        let settings = unsafe { settings(options) }?;
        let connection = Connection::open(settings)?;
        // SAFETY: as above.
        unsafe { give(client, KeywayClient { connection }) }?;
        Ok(0)
    };
    // SAFETY: as above.
    unsafe { small_call(error, work) }
}

/// # Safety
/// As the header asks for.
pub(crate) unsafe fn settings(options: *const KeywayClientOptions) -> Result<Settings, Fault> {
    // SAFETY: upheld by the caller, for the structure and its texts.
    let text = |from| unsafe { text(from) };
    // SAFETY: as above.
    let options = unsafe { read(options) }?;
    let milliseconds = |value: u32| (value > 0).then(|| Duration::from_millis(value.into()));
    Ok(Settings {
        endpoint: text(options.endpoint)?,
        region: text(options.region)?,
        access_key: text(options.access_key)?,
        secret_key: text(options.secret_key)?,
        session_token: text(options.session_token)?,
        ca_file: text(options.ca_file)?,
        path: text(options.path)?,
        require_strength: text(options.require_strength)?,
        anonymous: options.flags & abi::ANONYMOUS != 0,
        virtual_host: options.flags & abi::VIRTUAL_HOST != 0,
        get_part_bytes: some(options.get_part_bytes),
        put_part_bytes: some(options.put_part_bytes),
        concurrency: some(options.concurrency as usize),
        connections_max: some(options.connections_max as usize),
        attempts_max: some(options.attempts_max),
        connect_timeout: milliseconds(options.connect_timeout_ms),
        stall_timeout: milliseconds(options.stall_timeout_ms),
        ..Settings::default()
    })
}

/// Zero means "as usual".
pub(crate) fn some<T: Default + PartialEq>(value: T) -> Option<T> {
    (value != T::default()).then_some(value)
}

/// Ends a client.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keyway_client_close(client: *mut KeywayClient) {
    // SAFETY: the header asks for it.
    unsafe { take(client) };
}

/// # Safety
/// As the header asks for.
pub(crate) unsafe fn place(url: *const c_char) -> Result<Place, Fault> {
    // SAFETY: upheld by the caller.
    let url = unsafe { text(url) }?.ok_or_else(|| Fault::invalid("there is no address"))?;
    Ok(Place::object(&url, None)?)
}

/// Asks what an object is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keyway_head(
    client: *const KeywayClient,
    url: *const c_char,
    object: *mut KeywayObject,
    error: *mut KeywayError,
) -> i32 {
    let work = || {
        // SAFETY: the header asks for it.
        let (client, place) = unsafe { (handle(client)?, place(url)?) };
        let info = wait(head(client.connection.client()?, place))?;
        let crc = info.checksums.iter().find(|sum| sum.kind() == ChecksumKind::Crc64Nvme);
        let found = KeywayObject {
            size: 0,
            bytes: info.size,
            modified_ms: info.last_modified.map_or(0, |at| at.as_millisecond()),
            etag: chars(info.etag.as_deref().unwrap_or_default()),
            version: chars(info.version.as_deref().unwrap_or_default()),
            content_type: chars(info.content_type.as_deref().unwrap_or_default()),
            crc64nvme: chars(&crc.map(|sum| sum.to_base64()).unwrap_or_default()),
        };
        // SAFETY: as above.
        unsafe { write(object, &found) };
        Ok(0)
    };
    // SAFETY: as above.
    unsafe { small_call(error, work) }
}

/// Deletes an object.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keyway_delete(
    client: *const KeywayClient,
    url: *const c_char,
    error: *mut KeywayError,
) -> i32 {
    let work = || {
        // SAFETY: the header asks for it.
        let (client, place) = unsafe { (handle(client)?, place(url)?) };
        let client = client.connection.client()?;
        wait(async { Ok(client.delete_object(&place.bucket, &place.key).await?) })?;
        Ok(0)
    };
    // SAFETY: as above.
    unsafe { small_call(error, work) }
}

/// Creates a bucket.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keyway_create_bucket(
    client: *const KeywayClient,
    bucket: *const c_char,
    error: *mut KeywayError,
) -> i32 {
    let work = || {
        // SAFETY: the header asks for it.
        let (client, bucket) = unsafe { (handle(client)?, text(bucket)?) };
        let bucket = bucket.ok_or_else(|| Fault::invalid("there is no name"))?;
        let client = client.connection.client()?;
        wait(async { Ok(client.create_bucket(&bucket).await?) })?;
        Ok(0)
    };
    // SAFETY: as above.
    unsafe { small_call(error, work) }
}

/// Begins a listing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keyway_list_open(
    client: *const KeywayClient,
    url: *const c_char,
    delimiter: *const c_char,
    listing: *mut *mut KeywayListing,
    error: *mut KeywayError,
) -> i32 {
    let work = || {
        // SAFETY: the header asks for it.
        let (client, url, delimiter) = unsafe { (handle(client)?, text(url)?, text(delimiter)?) };
        let url = url.ok_or_else(|| Fault::invalid("there is no address"))?;
        let place = Place::parse(&url, None)?;
        let begun = KeywayListing {
            listing: Listing::new(&client.connection.client()?, &place, delimiter.as_deref()),
            ready: VecDeque::new(),
            key: CString::default(),
        };
        // SAFETY: as above.
        unsafe { give(listing, begun) }?;
        Ok(0)
    };
    // SAFETY: as above.
    unsafe { small_call(error, work) }
}

/// Takes the next entry.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keyway_list_next(
    listing: *mut KeywayListing,
    entry: *mut KeywayEntry,
    error: *mut KeywayError,
) -> i32 {
    let work = || {
        // SAFETY: the header asks for it, and for no other call with this listing meanwhile.
        let listing = unsafe { listing.as_mut() };
        let listing = listing.ok_or_else(|| Fault::invalid("a handle is null"))?;
        if listing.ready.is_empty() {
            listing.ready.extend(wait(listing.listing.page())?);
        }
        let mut found = zeroed::<KeywayEntry>();
        let key = match listing.ready.pop_front() {
            None => return Ok(0),
            Some(Listed::Prefix(key)) => {
                found.is_prefix = 1;
                key
            }
            Some(Listed::Object { key, bytes, etag, modified }) => {
                found.bytes = bytes;
                found.modified_ms = modified.map_or(0, |at| at.as_millisecond());
                found.etag = chars(&etag);
                key
            }
        };
        listing.key = CString::new(key).map_err(|_| Fault::invalid("a key with a zero in it"))?;
        found.key = listing.key.as_ptr();
        // SAFETY: as above.
        unsafe { write(entry, &found) };
        Ok(1)
    };
    // SAFETY: as above.
    unsafe { small_call(error, work) }
}

/// Ends a listing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keyway_list_close(listing: *mut KeywayListing) {
    // SAFETY: the header asks for it.
    unsafe { take(listing) };
}

impl KeywayClient {
    pub(crate) fn client(&self) -> Result<keyway_client::Client, Failure> {
        self.connection.client()
    }
}
