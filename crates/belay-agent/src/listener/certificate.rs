//! The agent's serving certificate: made once, kept, known to the server by its fingerprint.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest as _, Sha256};
use tracing::info;

/// Why there is no serving certificate.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// Making one.
    #[error("cannot make a serving certificate: {0}")]
    Make(#[from] rcgen::Error),
    /// Keeping it.
    #[error("cannot keep the serving certificate in {}: {source}", path.display())]
    Keep {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Reading what was made.
    #[error("the serving certificate just made cannot be read: {0}")]
    Pem(#[from] rustls::pki_types::pem::Error),
}

/// Certificate and key.
#[derive(Debug)]
pub(crate) struct Serving {
    pub(crate) certificate: CertificateDer<'static>,
    pub(crate) key: PrivateKeyDer<'static>,
}

impl Serving {
    /// Reads the certificate that is kept in `data_dir`, or makes one for `names`.
    ///
    /// One that cannot be read is replaced: the server learns the new fingerprint when the node
    /// registers.
    pub(crate) fn load_or_make(
        data_dir: &Path,
        names: Vec<String>,
    ) -> Result<Self, CertificateError> {
        let path = data_dir.join("serving.pem");
        if let Ok(pem) = fs::read(&path)
            && let Ok(serving) = Serving::parse(&pem)
        {
            return Ok(serving);
        }
        info!(path = %path.display(), "making a serving certificate");
        let pem = make(names)?;
        keep(&path, pem.as_bytes()).map_err(|source| CertificateError::Keep { path, source })?;
        Ok(Serving::parse(pem.as_bytes())?)
    }

    fn parse(pem: &[u8]) -> Result<Self, rustls::pki_types::pem::Error> {
        Ok(Serving {
            certificate: CertificateDer::from_pem_slice(pem)?,
            key: PrivateKeyDer::from_pem_slice(pem)?,
        })
    }

    /// SHA-256 of the certificate in lower-case hex.
    pub(crate) fn fingerprint(&self) -> String {
        Sha256::digest(&self.certificate)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }
}

fn make(names: Vec<String>) -> Result<String, rcgen::Error> {
    let key = KeyPair::generate()?;
    let common_name = names.first().cloned().unwrap_or_default();
    let mut params = CertificateParams::new(names)?;
    params
        .distinguished_name
        .push(DnType::CommonName, common_name);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let certificate = params.self_signed(&key)?;
    Ok(format!("{}{}", certificate.pem(), key.serialize_pem()))
}

/// Writes the file whole or not at all, readable by its owner only.
fn keep(path: &Path, content: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension("tmp");
    let mut file = fs::OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&temporary, path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_certificate_is_made_once_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let names = || vec!["n1".to_owned(), "192.0.2.7".to_owned()];
        let first = Serving::load_or_make(dir.path(), names())
            .unwrap()
            .fingerprint();
        let second = Serving::load_or_make(dir.path(), names())
            .unwrap()
            .fingerprint();
        assert_eq!(first, second);
        assert_eq!(first.len(), 64);
        let mode = fs::metadata(dir.path().join("serving.pem"))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_damaged_certificate_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("serving.pem"), "rubbish").unwrap();
        assert!(Serving::load_or_make(dir.path(), vec!["n1".to_owned()]).is_ok());
    }
}
