//! A key in a file, and what is sealed under it.
//!
//! Sealing is XChaCha20-Poly1305: its 24-byte nonces may be drawn at random for as long as
//! the key lives. The purpose of what is sealed is authenticated with it, so that one sealed
//! file cannot be put in the place of another.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use chacha20poly1305::aead::{Aead, Generate, Key, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use hmac::{Hmac, Mac};
use sha2::Sha256;
use zeroize::Zeroizing;

use crate::secrets::{KeyProvider, SecretsError};

/// Length of the key, and of the file that holds it.
const KEY_BYTES: usize = 32;
/// Length of the nonce in front of what is sealed.
const NONCE_BYTES: usize = 24;
/// First bytes of everything sealed; the digit is the format's version.
const MAGIC: &[u8; 8] = b"KWSEAL1\n";
/// What stands before the context of a derived key: nothing else is made of the key by HMAC.
const DERIVED: &[u8] = b"keyway derived key v1\n";
/// Longest sealed file that is read.
const SEALED_BYTES_MAX: u64 = 64 * 1024;

/// What a sealed file holds. Two purposes never open each other's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Purpose {
    /// The root tenant's credentials.
    RootCredentials,
}

impl Purpose {
    /// The associated data: part of the format.
    fn tag(self) -> &'static [u8] {
        match self {
            Self::RootCredentials => b"keyway root credentials v1",
        }
    }
}

/// Why a key file or a sealed file was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyFileError {
    /// The file cannot be read or written.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// `read` or `write`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Others than the owner may read or write the key.
    #[error(
        "key file {} has mode {mode:03o}; others could read it. If nobody has, run: chmod 600 {}",
        path.display(), path.display()
    )]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The key file does not hold a key.
    #[error("{} is not a key file: it must hold {KEY_BYTES} bytes", path.display())]
    NotAKey {
        /// The file.
        path: PathBuf,
    },
    /// The sealed file is not one, or of a version unknown here.
    #[error("{} is not a sealed file of this version", path.display())]
    NotSealed {
        /// The file.
        path: PathBuf,
    },
    /// The sealed file was changed, made for another purpose, or sealed under another key.
    #[error("{} was tampered with, or was sealed under another key file", path.display())]
    Tampered {
        /// The file.
        path: PathBuf,
    },
}

/// A key that lives in a file of mode 0600 and is wiped from memory when dropped.
pub struct KeyFile {
    key: Zeroizing<[u8; KEY_BYTES]>,
}

impl KeyFile {
    /// Reads the key, or makes one where there is no file.
    ///
    /// # Errors
    /// [`KeyFileError::Exposed`] when others than the file's owner may read it.
    pub fn open_or_create(path: &Path) -> Result<Self, KeyFileError> {
        match File::open(path) {
            Ok(file) => Self::read(file, path),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::create(path),
            Err(source) => Err(io_error("read", path, source)),
        }
    }

    /// A key that no file has: what is sealed under it is lost with the process.
    pub fn in_memory() -> Self {
        Self { key: random_bytes() }
    }

    fn read(mut file: File, path: &Path) -> Result<Self, KeyFileError> {
        // The mode is asked of the open file, not of the path, which could be swapped.
        let mode = file.metadata().map_err(|e| io_error("read", path, e))?.mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(KeyFileError::Exposed { path: path.to_owned(), mode });
        }
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        let mut rest = [0; 1];
        let whole = file.read_exact(&mut *key).and_then(|()| file.read(&mut rest));
        match whole {
            Ok(0) => Ok(Self { key }),
            Ok(_) => Err(KeyFileError::NotAKey { path: path.to_owned() }),
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                Err(KeyFileError::NotAKey { path: path.to_owned() })
            }
            Err(source) => Err(io_error("read", path, source)),
        }
    }

    fn create(path: &Path) -> Result<Self, KeyFileError> {
        let key = random_bytes();
        write_private(path, &*key).map_err(|e| io_error("write", path, e))?;
        Ok(Self { key })
    }

    /// Seals `plain` and writes it to `path` atomically, with mode 0600.
    ///
    /// # Errors
    /// [`KeyFileError::Io`]; the former file is then still in place.
    pub fn seal_to(&self, path: &Path, purpose: Purpose, plain: &[u8]) -> Result<(), KeyFileError> {
        let file = self.sealed(purpose.tag(), plain);
        write_private(path, &file).map_err(|e| io_error("write", path, e))
    }

    /// Opens what [`seal_to`](Self::seal_to) wrote; `None` when there is no file.
    ///
    /// # Errors
    /// [`KeyFileError::Tampered`] when the file is not what was written under this key for
    /// this purpose.
    pub fn open_from(
        &self,
        path: &Path,
        purpose: Purpose,
    ) -> Result<Option<Zeroizing<Vec<u8>>>, KeyFileError> {
        let mut file = Vec::new();
        match File::open(path) {
            Ok(source) => source.take(SEALED_BYTES_MAX).read_to_end(&mut file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => Err(error),
        }
        .map_err(|e| io_error("read", path, e))?;
        let not_sealed = || KeyFileError::NotSealed { path: path.to_owned() };
        let parts = split(&file).ok_or_else(not_sealed)?;
        self.opened(purpose.tag(), parts)
            .map(Some)
            .ok_or_else(|| KeyFileError::Tampered { path: path.to_owned() })
    }

    fn sealed(&self, tag: &[u8], plain: &[u8]) -> Vec<u8> {
        let nonce = XNonce::generate();
        let sealed = self
            .cipher()
            .encrypt(&nonce, Payload { msg: plain, aad: tag })
            .expect("a few KiB are far below the cipher's limit");
        let mut whole = Vec::with_capacity(MAGIC.len() + NONCE_BYTES + sealed.len());
        whole.extend_from_slice(MAGIC);
        whole.extend_from_slice(&nonce);
        whole.extend_from_slice(&sealed);
        whole
    }

    fn opened(
        &self,
        tag: &[u8],
        (nonce, sealed): (&[u8; NONCE_BYTES], &[u8]),
    ) -> Option<Zeroizing<Vec<u8>>> {
        let payload = Payload { msg: sealed, aad: tag };
        self.cipher().decrypt(&XNonce::from(*nonce), payload).ok().map(Zeroizing::new)
    }

    fn cipher(&self) -> XChaCha20Poly1305 {
        XChaCha20Poly1305::new(&Key::<XChaCha20Poly1305>::from(*self.key))
    }
}

impl KeyProvider for KeyFile {
    fn seal(&self, context: &[u8], plain: &[u8]) -> Result<Vec<u8>, SecretsError> {
        Ok(self.sealed(context, plain))
    }

    fn open(&self, context: &[u8], sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, SecretsError> {
        let opened = split(sealed).and_then(|parts| self.opened(context, parts));
        opened.ok_or(SecretsError::Tampered)
    }

    fn derive(&self, context: &[u8]) -> Result<Zeroizing<[u8; 32]>, SecretsError> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&*self.key).expect("HMAC takes any key");
        mac.update(DERIVED);
        mac.update(context);
        Ok(Zeroizing::new(mac.finalize().into_bytes().into()))
    }
}

/// The nonce and what is sealed, of something of this format's version.
fn split(whole: &[u8]) -> Option<(&[u8; NONCE_BYTES], &[u8])> {
    whole.strip_prefix(MAGIC)?.split_first_chunk::<NONCE_BYTES>()
}

/// 32 bytes from the system's random source.
pub(crate) fn random_bytes() -> Zeroizing<[u8; KEY_BYTES]> {
    Zeroizing::new(Key::<XChaCha20Poly1305>::generate().into())
}

/// Writes a file of mode 0600 such that a crash leaves the old or the new one, never a part.
fn write_private(path: &Path, content: &[u8]) -> io::Result<()> {
    let directory = path.parent().filter(|p| !p.as_os_str().is_empty());
    let directory = directory.unwrap_or(Path::new("."));
    let staged = path.with_extension("new");
    // A leftover of a crash may have any mode: `create_new` makes sure that ours is used.
    match fs::remove_file(&staged) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&staged)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&staged, path)?;
    File::open(directory)?.sync_all()
}

fn io_error(action: &'static str, path: &Path, source: io::Error) -> KeyFileError {
    KeyFileError::Io { action, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const PURPOSE: Purpose = Purpose::RootCredentials;

    #[test]
    fn what_is_sealed_opens_again_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let (key, sealed) = (dir.path().join("key"), dir.path().join("sealed"));
        let first = KeyFile::open_or_create(&key).unwrap();
        assert!(first.open_from(&sealed, PURPOSE).unwrap().is_none());
        first.seal_to(&sealed, PURPOSE, b"secret text").unwrap();
        let again = KeyFile::open_or_create(&key).unwrap();
        assert_eq!(&**again.open_from(&sealed, PURPOSE).unwrap().unwrap(), b"secret text");
        for path in [&key, &sealed] {
            assert_eq!(fs::metadata(path).unwrap().mode() & 0o777, 0o600);
        }
        let file = fs::read(&sealed).unwrap();
        assert!(!file.windows(6).any(|w| w == b"secret"), "the text must not be readable");
    }

    #[test]
    fn every_changed_byte_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let sealed = dir.path().join("sealed");
        let key = KeyFile::open_or_create(&dir.path().join("key")).unwrap();
        key.seal_to(&sealed, PURPOSE, b"0123456789").unwrap();
        let good = fs::read(&sealed).unwrap();
        for position in 0..good.len() {
            let mut bad = good.clone();
            bad[position] ^= 1;
            fs::write(&sealed, &bad).unwrap();
            match key.open_from(&sealed, PURPOSE) {
                Err(KeyFileError::NotSealed { .. }) => assert!(position < MAGIC.len()),
                Err(KeyFileError::Tampered { .. }) => assert!(position >= MAGIC.len()),
                other => panic!("byte {position}: {:?}", other.map(|_| ())),
            }
        }
        for length in 0..good.len() {
            fs::write(&sealed, &good[..length]).unwrap();
            assert!(key.open_from(&sealed, PURPOSE).is_err(), "cut to {length}");
        }
    }

    #[test]
    fn a_secret_opens_in_its_own_context_alone() {
        let dir = tempfile::tempdir().unwrap();
        let key = KeyFile::open_or_create(&dir.path().join("key")).unwrap();
        let sealed = key.seal(b"key A", b"secret").unwrap();
        assert_eq!(&**key.open(b"key A", &sealed).unwrap(), b"secret");
        assert_eq!(key.open(b"key B", &sealed), Err(SecretsError::Tampered));
        assert_eq!(key.open(b"key A", &sealed[..20]), Err(SecretsError::Tampered));
    }

    #[test]
    fn another_key_opens_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let sealed = dir.path().join("sealed");
        let key = KeyFile::open_or_create(&dir.path().join("key")).unwrap();
        key.seal_to(&sealed, PURPOSE, b"text").unwrap();
        let other = KeyFile::open_or_create(&dir.path().join("other")).unwrap();
        assert!(matches!(other.open_from(&sealed, PURPOSE), Err(KeyFileError::Tampered { .. })));
    }

    #[test]
    fn a_key_that_others_can_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let key = dir.path().join("key");
        KeyFile::open_or_create(&key).unwrap();
        for mode in [0o640, 0o604, 0o660] {
            fs::set_permissions(&key, fs::Permissions::from_mode(mode)).unwrap();
            match KeyFile::open_or_create(&key) {
                Err(KeyFileError::Exposed { mode: told, .. }) => assert_eq!(told, mode),
                other => panic!("mode {mode:o}: {:?}", other.map(|_| ())),
            }
        }
    }

    #[test]
    fn a_file_that_holds_no_key_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let key = dir.path().join("key");
        for length in [0, KEY_BYTES - 1, KEY_BYTES + 1] {
            write_private(&key, &vec![7; length]).unwrap();
            let refused = KeyFile::open_or_create(&key);
            assert!(matches!(refused, Err(KeyFileError::NotAKey { .. })), "{length} bytes");
        }
    }
}
