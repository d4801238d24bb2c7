//! Uploads in parts that the caller cuts.

use async_trait::async_trait;
use bytes::Bytes;
use object_store::path::Path;
use object_store::{MultipartUpload, PutPayload, PutResult, Result, UploadPart};
use tokio::task::JoinHandle;

use super::error::translate;
use crate::error::ClientError;
use crate::transfer::{Part, PutObject, PutUpload};

/// An upload in progress. Parts begin to travel when they are given, and the trait's
/// contract is that a caller polls them, bounds how many there are, and then completes.
#[derive(Debug)]
pub(super) struct Upload {
    location: Path,
    put: PutObject,
    upload: PutUpload,
    parts: Vec<JoinHandle<Result<Part, ClientError>>>,
    bytes: u64,
}

impl Upload {
    pub(super) async fn begin(put: PutObject, location: &Path) -> Result<Self> {
        let upload = PutUpload::begin(&put).await.map_err(|e| translate(e, location))?;
        Ok(Self { location: location.clone(), put, upload, parts: Vec::new(), bytes: 0 })
    }
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let body = Bytes::from(data);
        self.bytes += body.len() as u64;
        let number = self.parts.len() as u64 + 1;
        let (ended, end) = tokio::sync::oneshot::channel();
        let part = self.upload.part(number, body);
        self.parts.push(tokio::spawn(async move {
            let result = part.await;
            // Nobody may be waiting: completion tells the same.
            let _ = ended.send(result.as_ref().err().map(ToString::to_string));
            result
        }));
        Box::pin(async move {
            match end.await {
                Ok(None) => Ok(()),
                Ok(Some(error)) => {
                    Err(object_store::Error::Generic { store: "keyway", source: error.into() })
                }
                Err(gone) => {
                    Err(object_store::Error::Generic { store: "keyway", source: gone.into() })
                }
            }
        })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let failed = |error| translate(error, &self.location);
        let mut parts = Vec::with_capacity(self.parts.len());
        // S3 wants at least one part, be it empty.
        if self.parts.is_empty() {
            parts.push(self.upload.part(1, Bytes::new()).await.map_err(failed)?);
        }
        for part in self.parts.drain(..) {
            let part = part.await.unwrap_or(Err(ClientError::GivenUp));
            parts.push(part.map_err(failed)?);
        }
        let done = self.upload.complete(&self.put, self.bytes, parts).await.map_err(failed)?;
        Ok(PutResult { e_tag: done.etag, version: done.version, extensions: Default::default() })
    }

    async fn abort(&mut self) -> Result<()> {
        for part in self.parts.drain(..) {
            part.abort();
        }
        self.upload.abort().await.map_err(|error| translate(error, &self.location))
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        for part in self.parts.drain(..) {
            part.abort();
        }
    }
}
