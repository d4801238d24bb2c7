//! `keyway._keyway.Client`: every operation as something to be waited for or awaited. Its
//! face, with a method and a coroutine for each, is `keyway/client.py`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use keyway_bindings::{Connection, Failure, Fetch, Listing, Place, Settings, Store};
use keyway_client::DeleteFailure;
use keyway_proto::{ByteRange, Durability};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::buffer::Buffer;
use crate::operation::Operation;
use crate::raise::raise;
use crate::report::{ListedObject, ObjectInfoView, Report};
use crate::storage::{Access, Part};

/// A client; see `keyway.Client`.
#[pyclass(frozen, module = "keyway._keyway")]
pub(crate) struct Client {
    connection: Connection,
}

/// Offset and length.
type Span = (u64, u64);

/// What a keyword argument named, by its name.
#[derive(FromPyObject)]
struct ClientOptions {
    #[pyo3(item)]
    endpoint: Option<String>,
    #[pyo3(item)]
    bucket: Option<String>,
    #[pyo3(item)]
    access_key: Option<String>,
    #[pyo3(item)]
    secret_key: Option<String>,
    #[pyo3(item)]
    session_token: Option<String>,
    #[pyo3(item)]
    anonymous: bool,
    #[pyo3(item)]
    region: Option<String>,
    #[pyo3(item)]
    ca_file: Option<String>,
    #[pyo3(item)]
    virtual_host: bool,
    #[pyo3(item)]
    path: Option<String>,
    #[pyo3(item)]
    require_strength: Option<String>,
    #[pyo3(item)]
    devices: Option<Vec<String>>,
    #[pyo3(item)]
    get_part_bytes: Option<u64>,
    #[pyo3(item)]
    put_part_bytes: Option<u64>,
    #[pyo3(item)]
    concurrency: Option<usize>,
    #[pyo3(item)]
    connections_max: Option<usize>,
    #[pyo3(item)]
    attempts_max: Option<u32>,
    #[pyo3(item)]
    connect_timeout: Option<f64>,
    #[pyo3(item)]
    stall_timeout: Option<f64>,
}

/// What reads and writes have in common.
#[derive(FromPyObject)]
struct TransferOptions {
    #[pyo3(item)]
    if_match: Option<String>,
    #[pyo3(item)]
    part_bytes: Option<u64>,
    #[pyo3(item)]
    concurrency: Option<usize>,
    #[pyo3(item)]
    timeout: Option<f64>,
}

/// What an object keeps, and whether it may be there already.
#[derive(FromPyObject)]
struct KeptOptions {
    #[pyo3(item)]
    content_type: Option<String>,
    #[pyo3(item)]
    metadata: Option<BTreeMap<String, String>>,
    #[pyo3(item)]
    if_absent: bool,
    #[pyo3(item)]
    durability: String,
}

impl TransferOptions {
    fn fetch(self) -> PyResult<Fetch> {
        Ok(Fetch {
            if_match: self.if_match,
            part_bytes: self.part_bytes,
            concurrency: self.concurrency,
            deadline: seconds(self.timeout)?,
            ..Fetch::default()
        })
    }

    fn store(self) -> PyResult<Store> {
        Ok(Store {
            if_match: self.if_match,
            part_bytes: self.part_bytes,
            concurrency: self.concurrency,
            deadline: seconds(self.timeout)?,
            ..Store::default()
        })
    }
}

#[pymethods]
impl Client {
    #[new]
    fn new(options: &Bound<'_, PyDict>) -> PyResult<Self> {
        let options: ClientOptions = options.extract()?;
        let settings = Settings {
            endpoint: options.endpoint,
            region: options.region,
            access_key: options.access_key,
            secret_key: options.secret_key,
            session_token: options.session_token,
            anonymous: options.anonymous,
            ca_file: options.ca_file,
            virtual_host: options.virtual_host,
            bucket: options.bucket,
            path: options.path,
            require_strength: options.require_strength,
            devices: options.devices,
            get_part_bytes: options.get_part_bytes,
            put_part_bytes: options.put_part_bytes,
            concurrency: options.concurrency,
            connections_max: options.connections_max,
            attempts_max: options.attempts_max,
            connect_timeout: seconds(options.connect_timeout)?,
            stall_timeout: seconds(options.stall_timeout)?,
        };
        Ok(Self { connection: Connection::open(settings).map_err(raise)? })
    }

    /// The endpoint's address.
    #[getter]
    fn endpoint(&self) -> PyResult<String> {
        Ok(self.client()?.endpoint())
    }

    /// Bucket and key that a text names.
    fn place(&self, url: &str) -> PyResult<(String, String)> {
        let place = Place::parse(url, self.bucket()).map_err(|error| raise(error.into()))?;
        Ok((place.bucket, place.key))
    }

    /// Reads into one buffer: the object, a range, or several laid end to end.
    fn get_into(
        &self,
        url: &str,
        buffer: &Bound<'_, PyAny>,
        spans: Option<Vec<Span>>,
        version: Option<String>,
        stream: Option<u64>,
        options: TransferOptions,
    ) -> PyResult<Operation> {
        let (client, place) = (self.client()?, self.object(url)?);
        let part = Part::of(buffer, Access::Fill, stream)?;
        let keep = vec![Arc::clone(&part.storage)];
        let mut target = part.target()?;
        let fetch = Fetch { version, turn: part.turn()?, ..options.fetch()? };
        let Some(spans) = spans else {
            let work = fetch.into(client, place, target);
            return Ok(Operation::new(keep, work, report));
        };
        let ranges = ranges(spans)?;
        let needed = ranges.iter().try_fold(0_u64, |sum, range| sum.checked_add(range.length()));
        if needed.is_none_or(|needed| needed > part.len() as u64) {
            let available = part.len();
            let message = format!("the ranges do not fit into a buffer of {available} bytes");
            return Err(crate::raise::buffer_too_small(&message));
        }
        if let [range] = ranges[..] {
            let work = Fetch { range: Some(range), ..fetch }.into(client, place, target);
            return Ok(Operation::new(keep, work, report));
        }
        let cut = |range: ByteRange| (range, target.split_to(range.length() as usize));
        let wanted = ranges.into_iter().map(cut).collect();
        let work = fetch.ranges(client, place, wanted);
        Ok(Operation::new(keep, work, |py, reports| match keyway_bindings::Report::all(reports) {
            Some(all) => report(py, all),
            None => Err(PyValueError::new_err("no range was asked for")),
        }))
    }

    /// Reads ranges of one version, each into a buffer of its own.
    fn get_ranges(
        &self,
        url: &str,
        wanted: Vec<(u64, Bound<'_, PyAny>)>,
        stream: Option<u64>,
        options: TransferOptions,
    ) -> PyResult<Operation> {
        let (client, place) = (self.client()?, self.object(url)?);
        let mut keep = Vec::with_capacity(wanted.len());
        let mut targets = Vec::with_capacity(wanted.len());
        let mut fetch = options.fetch()?;
        let mut last = None;
        for (offset, buffer) in wanted {
            let part = Part::of(&buffer, Access::Fill, stream)?;
            let range = Fetch::range(offset, part.len() as u64).map_err(raise)?;
            targets.push((range, part.target()?));
            keep.push(Arc::clone(&part.storage));
            if part.stream.is_some() {
                last = Some(part);
            }
        }
        // One turn for all: the producers have made the one stream wait for theirs.
        if let Some(part) = last {
            fetch.turn = part.turn()?;
        }
        let work = fetch.ranges(client, place, targets);
        Ok(Operation::new(keep, work, |py, reports| {
            let reports: Vec<Report> = reports.into_iter().map(Report::from).collect();
            Ok(reports.into_pyobject(py)?.unbind())
        }))
    }

    /// Reads into memory of the client's own.
    fn get(
        &self,
        url: &str,
        span: Option<Span>,
        version: Option<String>,
        gpu: Option<u32>,
        options: TransferOptions,
    ) -> PyResult<Operation> {
        let (client, place) = (self.client()?, self.object(url)?);
        let range = span.map(|(offset, length)| Fetch::range(offset, length)).transpose();
        let fetch = Fetch { range: range.map_err(raise)?, version, ..options.fetch()? };
        let work = fetch.whole(client, place, gpu);
        Ok(Operation::new(Vec::new(), work, |py, (report, memory)| {
            let bytes = report.bytes as usize;
            let result = Py::new(py, Report::from(report))?;
            Ok(Py::new(py, Buffer::read(memory, bytes, result)?)?.into_any())
        }))
    }

    /// Writes a buffer as the whole object.
    fn put(
        &self,
        url: &str,
        data: &Bound<'_, PyAny>,
        stream: Option<u64>,
        kept: KeptOptions,
        options: TransferOptions,
    ) -> PyResult<Operation> {
        let (client, place) = (self.client()?, self.object(url)?);
        let part = Part::of(data, Access::Send, stream)?;
        let durability = Durability::named(&kept.durability).ok_or_else(|| {
            PyValueError::new_err(format!("{:?} is no durability: disk or memory", kept.durability))
        })?;
        let store = Store {
            durability,
            content_type: kept.content_type,
            metadata: kept.metadata.into_iter().flatten().collect(),
            if_absent: kept.if_absent,
            turn: part.turn()?,
            ..options.store()?
        };
        let work = store.send(client, place, part.source()?);
        Ok(Operation::new(vec![part.storage], work, report))
    }

    /// Waits until what was written to memory is durable; gives how many objects became so,
    /// and how many were lost.
    fn flush(&self, url: &str, timeout: Option<f64>) -> PyResult<Operation> {
        let place = Place::parse(url, self.bucket()).map_err(|error| raise(error.into()))?;
        let work = keyway_bindings::flush(self.client()?, place, seconds(timeout)?);
        Ok(Operation::new(Vec::new(), work, |py, reply| {
            Ok((reply.settled, reply.lost).into_pyobject(py)?.into_any().unbind())
        }))
    }

    /// Asks what an object is.
    fn head(&self, url: &str) -> PyResult<Operation> {
        let work = keyway_bindings::head(self.client()?, self.object(url)?);
        Ok(Operation::new(Vec::new(), work, |py, info| {
            Ok(Py::new(py, ObjectInfoView::from(info))?.into_any())
        }))
    }

    /// Deletes an object.
    fn delete(&self, url: &str) -> PyResult<Operation> {
        let (client, place) = (self.client()?, self.object(url)?);
        let work = async move { Ok(client.delete_object(&place.bucket, &place.key).await?) };
        Ok(Operation::new(Vec::new(), work, nothing))
    }

    /// Deletes objects of one bucket; gives those that stayed, as key, code and message.
    fn delete_many(&self, bucket: String, keys: Vec<String>) -> PyResult<Operation> {
        let client = self.client()?;
        let work = async move { Ok(client.delete_objects(&bucket, keys).await?) };
        Ok(Operation::new(Vec::new(), work, |py, stayed: Vec<DeleteFailure>| {
            let stayed: Vec<_> =
                stayed.into_iter().map(|one| (one.key, one.code, one.message)).collect();
            Ok(stayed.into_pyobject(py)?.unbind())
        }))
    }

    /// Copies an object within the service.
    fn copy(&self, source: &str, target: &str) -> PyResult<Operation> {
        let (client, from, to) = (self.client()?, self.object(source)?, self.object(target)?);
        let work = async move {
            let from = (from.bucket.as_str(), from.key.as_str());
            client.copy_object(from, (&to.bucket, &to.key)).await?;
            Ok(())
        };
        Ok(Operation::new(Vec::new(), work, nothing))
    }

    /// Creates a bucket.
    fn create_bucket(&self, bucket: String) -> PyResult<Operation> {
        let client = self.client()?;
        let work = async move { Ok(client.create_bucket(&bucket).await?) };
        Ok(Operation::new(Vec::new(), work, nothing))
    }

    /// Deletes an empty bucket.
    fn delete_bucket(&self, bucket: String) -> PyResult<Operation> {
        let client = self.client()?;
        let work = async move { Ok(client.delete_bucket(&bucket).await?) };
        Ok(Operation::new(Vec::new(), work, nothing))
    }

    /// The names of all buckets.
    fn buckets(&self) -> PyResult<Operation> {
        let client = self.client()?;
        let work = async move { Ok(client.list_buckets().await?) };
        Ok(Operation::new(Vec::new(), work, |py, buckets| {
            let names: Vec<String> = buckets.into_iter().map(|bucket| bucket.name).collect();
            Ok(names.into_pyobject(py)?.unbind())
        }))
    }

    /// A listing, to be taken from batch by batch.
    fn list(
        &self,
        url: &str,
        delimiter: Option<&str>,
        start_after: Option<&str>,
        page_keys: Option<u16>,
    ) -> PyResult<Entries> {
        let place = Place::parse(url, self.bucket()).map_err(|error| raise(error.into()))?;
        let mut listing = Listing::new(&self.client()?, &place, delimiter);
        if let Some(key) = start_after {
            listing = listing.start_after(key);
        }
        if let Some(keys) = page_keys {
            listing = listing.page_keys(keys);
        }
        Ok(Entries { listing: Arc::new(tokio::sync::Mutex::new(listing)) })
    }
}

impl Client {
    fn client(&self) -> PyResult<keyway_client::Client> {
        self.connection.client().map_err(raise)
    }

    fn bucket(&self) -> Option<&str> {
        self.connection.settings().bucket.as_deref()
    }

    fn object(&self, url: &str) -> PyResult<Place> {
        Place::object(url, self.bucket()).map_err(|error| raise(error.into()))
    }
}

/// A listing under way.
#[pyclass(frozen, module = "keyway._keyway")]
pub(crate) struct Entries {
    listing: Arc<tokio::sync::Mutex<Listing>>,
}

#[pymethods]
impl Entries {
    /// The entries of the next page; none after the last.
    fn page(&self) -> Operation {
        let listing = Arc::clone(&self.listing);
        let work = async move { listing.lock().await.page().await };
        Operation::new(Vec::new(), work, |py, entries| {
            let entries: Vec<ListedObject> = entries.into_iter().map(ListedObject::from).collect();
            Ok(entries.into_pyobject(py)?.unbind())
        })
    }
}

fn report(py: Python<'_>, report: keyway_bindings::Report) -> PyResult<Py<PyAny>> {
    Ok(Py::new(py, Report::from(report))?.into_any())
}

fn nothing(py: Python<'_>, (): ()) -> PyResult<Py<PyAny>> {
    Ok(py.None())
}

fn ranges(spans: Vec<Span>) -> PyResult<Vec<ByteRange>> {
    let ranges = spans.into_iter().map(|(offset, length)| Fetch::range(offset, length));
    ranges.collect::<Result<_, Failure>>().map_err(raise)
}

fn seconds(value: Option<f64>) -> PyResult<Option<Duration>> {
    let duration = value.map(Duration::try_from_secs_f64).transpose();
    duration.map_err(|error| PyValueError::new_err(format!("a time-out in seconds: {error}")))
}
