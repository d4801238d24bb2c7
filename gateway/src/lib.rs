//! Keyway's control plane: HTTP, S3, metadata, and the seam to the storage nodes.

#![forbid(unsafe_code)]
