//! multipart
