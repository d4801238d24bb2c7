//! A small certificate authority: for development certificates of the S3 listener, and for
//! mutual TLS between gateways and nodes.
//!
//! The authority is a directory: `authority.pem` to hand out, `authority.key` to keep. It is
//! made once; certificates under it are made as needed.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use jiff::{Timestamp, ToSpan, tz::TimeZone};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};

/// How long a certificate under the authority is valid.
const VALID_DAYS: i64 = 397;
/// Certificates are valid from some time before they are made, for clients whose clock lags.
const BACKDATED_DAYS: i64 = 1;

/// Why a certificate could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PkiError {
    /// A file cannot be read or written.
    #[error("cannot access {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The authority's key is not one, or a name cannot stand in a certificate.
    #[error("cannot make a certificate")]
    Certificate(#[from] rcgen::Error),
}

/// A certificate with its key, as files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Certificate (PEM).
    pub certificate: PathBuf,
    /// Private key (PEM), readable by the owner alone.
    pub key: PathBuf,
}

/// The authority of a directory.
pub struct Authority {
    directory: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Opens the directory's authority, or makes one.
    ///
    /// # Errors
    /// [`PkiError::Io`] when the directory cannot be used.
    pub fn open_or_create(directory: &Path) -> Result<Self, PkiError> {
        fs::create_dir_all(directory).map_err(at(directory))?;
        let (certificate, key) = (directory.join("authority.pem"), directory.join("authority.key"));
        let pair = match fs::read_to_string(&key) {
            Ok(pem) => KeyPair::from_pem(&pem)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let pair = KeyPair::generate()?;
                write(&key, &pair.serialize_pem(), 0o600)?;
                pair
            }
            Err(source) => return Err(PkiError::Io { path: key, source }),
        };
        if !certificate.exists() {
            write(&certificate, &authority_params().self_signed(&pair)?.pem(), 0o644)?;
        }
        let issuer = Issuer::new(authority_params(), pair);
        Ok(Self { directory: directory.to_owned(), issuer })
    }

    /// The certificate that clients are to trust.
    pub fn certificate(&self) -> PathBuf {
        self.directory.join("authority.pem")
    }

    /// Makes a certificate `name.pem` with key `name.key` for these host names and addresses,
    /// for servers and clients alike. One made earlier is replaced.
    ///
    /// # Errors
    /// [`PkiError::Certificate`] when a host name is none.
    pub fn issue(&self, name: &str, hosts: &[String]) -> Result<Identity, PkiError> {
        let mut params = CertificateParams::new(hosts)?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        let today = Timestamp::now().to_zoned(TimeZone::UTC).date();
        let (first, last) = (day_after(today, -BACKDATED_DAYS), day_after(today, VALID_DAYS));
        params.not_before = date_time_ymd(first.0, first.1, first.2);
        params.not_after = date_time_ymd(last.0, last.1, last.2);
        let pair = KeyPair::generate()?;
        let certificate = params.signed_by(&pair, &self.issuer)?;
        let identity = Identity {
            certificate: self.directory.join(format!("{name}.pem")),
            key: self.directory.join(format!("{name}.key")),
        };
        write(&identity.key, &pair.serialize_pem(), 0o600)?;
        write(&identity.certificate, &certificate.pem(), 0o644)?;
        Ok(identity)
    }
}

/// Names under which a server at `address` may be reached: those given, the host's own, the
/// address, and loopback.
pub fn host_names(address: IpAddr, further: &[String]) -> Vec<String> {
    let mut names: Vec<String> =
        ["localhost", "127.0.0.1", "::1"].iter().map(|name| (*name).to_owned()).collect();
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let own = (!address.is_unspecified()).then(|| address.to_string());
    names.extend(own.into_iter().chain([host]).chain(further.iter().cloned()));
    names.retain(|name| !name.is_empty());
    names.sort();
    names.dedup();
    names
}

/// The authority's certificate is the same at every start but for its signature, so that the
/// issuer can be made again from the key alone.
fn authority_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "Keyway authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.not_before = date_time_ymd(2024, 1, 1);
    params.not_after = date_time_ymd(2054, 1, 1);
    params
}

/// Year, month and day of the date `days` after `from`.
fn day_after(from: jiff::civil::Date, days: i64) -> (i32, u8, u8) {
    let date = from.saturating_add(days.days());
    (i32::from(date.year()), date.month().unsigned_abs(), date.day().unsigned_abs())
}

/// Writes a file that is whole or absent, with this mode.
fn write(path: &Path, text: &str, mode: u32) -> Result<(), PkiError> {
    let staged = path.with_extension("new");
    match fs::remove_file(&staged) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(at(&staged)(error)),
        _ => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&staged)
        .map_err(at(&staged))?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(at(&staged))?;
    fs::rename(&staged, path).map_err(at(path))
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> PkiError + '_ {
    move |source| PkiError::Io { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn the_authority_stays_and_keys_are_private() {
        let dir = tempfile::tempdir().unwrap();
        let first = Authority::open_or_create(dir.path()).unwrap();
        let certificate = fs::read(first.certificate()).unwrap();
        let identity = first.issue("node", &["localhost".to_owned()]).unwrap();
        let again = Authority::open_or_create(dir.path()).unwrap();
        assert_eq!(fs::read(again.certificate()).unwrap(), certificate);
        for key in [dir.path().join("authority.key"), identity.key.clone()] {
            assert_eq!(fs::metadata(key).unwrap().mode() & 0o777, 0o600);
        }
        let before = fs::read(&identity.certificate).unwrap();
        let renewed = again.issue("node", &["localhost".to_owned()]).unwrap();
        assert_eq!(renewed, identity);
        assert_ne!(fs::read(&renewed.certificate).unwrap(), before);
    }

    #[test]
    fn a_server_is_known_by_all_its_names() {
        let names = host_names([192, 0, 2, 1].into(), &["s3.example".to_owned()]);
        for name in ["localhost", "127.0.0.1", "::1", "192.0.2.1", "s3.example"] {
            assert!(names.iter().any(|n| n == name), "{name} is missing from {names:?}");
        }
    }

    #[test]
    fn a_host_name_that_is_none_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::open_or_create(dir.path()).unwrap();
        let refused = authority.issue("node", &["bücher.example".to_owned()]);
        assert!(matches!(refused, Err(PkiError::Certificate(_))));
    }
}
