//! Operations of one request: buckets, heads, listings, copies, deletions, presigned URLs, flushes,
//! and the administration.

mod admin;
mod bucket;
mod copy;
mod delete;
mod flush;
mod head;
mod list;
mod prefetch;
mod presign;

pub use admin::Administer;
pub use bucket::{ListBuckets, ListedBucket};
pub use copy::CopyObject;
pub use delete::{DeleteFailure, DeleteObject};
pub use flush::Flush;
pub use head::HeadObject;
pub use list::{ListObjects, ListPage, ListedObject};
pub use prefetch::Prefetch;
pub use presign::Presign;

use jiff::Timestamp;

/// A time of S3's documents (RFC 3339); what cannot be read is left out.
fn document_time(text: Option<&str>) -> Option<Timestamp> {
    text?.trim().parse().ok()
}
