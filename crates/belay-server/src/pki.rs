//! The server's own certificate authority: made on first start, leaves renewed by themselves.
//!
//! `pki/ca.{crt,key}` is the only thing that must be kept. Serving and client certificates are
//! made from it whenever less than a third of their life is left or their names change.

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use sha2::{Digest as _, Sha256};
use time::{Duration, OffsetDateTime};

use crate::identity::{Identity, write_private};

const CA_LIFE: Duration = Duration::days(3650);
const LEAF_LIFE: Duration = Duration::days(365);
/// The name under which the server presents itself to agents.
pub(crate) const SERVER_CLIENT_NAME: &str = "system:belay:server";

/// Why certificates could not be made or read.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// A file of the `pki` directory.
    #[error("cannot use {path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        source: std::io::Error,
    },
    /// The CA files do not hold a certificate and its key.
    #[error(
        "cannot use the certificate authority in {dir} (restore ca.crt and ca.key from a backup, or remove both to start a new one; every kubeconfig made before then stops working)"
    )]
    Ca {
        /// The directory.
        dir: PathBuf,
        /// What went wrong.
        source: rcgen::Error,
    },
    /// A certificate could not be made.
    #[error("cannot make a certificate for {name}")]
    Issue {
        /// The subject.
        name: String,
        /// What went wrong.
        source: rcgen::Error,
    },
    /// TLS refused what was made.
    #[error("TLS refuses the certificates")]
    Tls(#[from] rustls::Error),
    /// The client verifier could not be built from the CA.
    #[error("TLS refuses the certificate authority")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
    /// PEM text that was just made or read is not PEM.
    #[error("unreadable PEM")]
    Pem(#[from] rustls::pki_types::pem::Error),
}

/// The certificate authority and what it signs.
pub(crate) struct Pki {
    ca_pem: String,
    issuer: Issuer<'static, KeyPair>,
    names: Vec<String>,
    serving: Arc<Serving>,
}

impl std::fmt::Debug for Pki {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pki")
            .field("names", &self.names)
            .finish_non_exhaustive()
    }
}

/// A certificate and its key, both PEM.
#[derive(Debug, Clone)]
pub(crate) struct Leaf {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

#[derive(Clone, Copy)]
enum Use {
    Server,
    Client,
}

impl Pki {
    /// Opens the authority in `dir`, making it when it is not there.
    pub(crate) fn open(dir: &Path, names: Vec<String>) -> Result<Self, PkiError> {
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| PkiError::Io { path, source }
        };
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .map_err(io(dir))?;
        let (crt, key) = (dir.join("ca.crt"), dir.join("ca.key"));
        if !crt.exists() && !key.exists() {
            let leaf = make_ca().map_err(|source| PkiError::Issue {
                name: "the CA".into(),
                source,
            })?;
            // The key first: a certificate without its key would be refused at the next start.
            write_private(&key, leaf.key.as_bytes()).map_err(io(&key))?;
            write_private(&crt, leaf.certificate.as_bytes()).map_err(io(&crt))?;
        } else if !crt.exists() {
            // Died between the two writes above: nobody has seen this key.
            fs::remove_file(&key).map_err(io(&key))?;
            return Self::open(dir, names);
        }
        let ca_pem = fs::read_to_string(&crt).map_err(io(&crt))?;
        let key_pem = fs::read_to_string(&key).map_err(io(&key))?;
        let ca = |source| PkiError::Ca {
            dir: dir.to_owned(),
            source,
        };
        let issuer = Issuer::from_ca_cert_pem(&ca_pem, KeyPair::from_pem(&key_pem).map_err(ca)?)
            .map_err(ca)?;
        let pki = Self {
            ca_pem,
            issuer,
            names,
            serving: Arc::default(),
        };
        pki.renew()?;
        Ok(pki)
    }

    pub(crate) fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// A client certificate for an identity.
    pub(crate) fn client(&self, identity: &Identity) -> Result<Leaf, PkiError> {
        self.issue(&identity.name, &identity.groups, &[], Use::Client)
    }

    /// Makes a new serving certificate when there is none or the old one has used up two thirds of
    /// its life. Called at the start and from time to time while serving.
    pub(crate) fn renew(&self) -> Result<(), PkiError> {
        let now = OffsetDateTime::now_utc();
        if self
            .serving
            .good_until()
            .is_some_and(|end| end - now > LEAF_LIFE / 3)
        {
            return Ok(());
        }
        let leaf = self.issue("belay-server", &[], &self.names, Use::Server)?;
        let chain = CertificateDer::pem_slice_iter(leaf.certificate.as_bytes())
            .collect::<Result<Vec<_>, _>>()?;
        let key = any_supported_type(&PrivateKeyDer::from_pem_slice(leaf.key.as_bytes())?)?;
        self.serving
            .set(CertifiedKey::new(chain, key), now + LEAF_LIFE);
        Ok(())
    }

    /// TLS for the listener: a client certificate is welcome, not required.
    pub(crate) fn server_config(&self) -> Result<Arc<ServerConfig>, PkiError> {
        let verifier = WebPkiClientVerifier::builder_with_provider(
            Arc::new(self.roots()?),
            Arc::new(rustls::crypto::ring::default_provider()),
        )
        .allow_unauthenticated()
        .build()?;
        let mut config =
            ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()?
                .with_client_cert_verifier(verifier)
                .with_cert_resolver(Arc::clone(&self.serving) as _);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    /// TLS towards an agent whose certificate has this SHA-256 (lower-case hex of the DER).
    pub(crate) fn agent_config(&self, fingerprint: &str) -> Result<ClientConfig, PkiError> {
        let leaf = self.issue(SERVER_CLIENT_NAME, &[], &[], Use::Client)?;
        let chain = CertificateDer::pem_slice_iter(leaf.certificate.as_bytes())
            .collect::<Result<Vec<_>, _>>()?;
        let key = PrivateKeyDer::from_pem_slice(leaf.key.as_bytes())?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(pinned::Pinned::new(fingerprint, provider)))
            .with_client_auth_cert(chain, key)?;
        Ok(config)
    }

    /// A kubeconfig for `server`, with the CA inside.
    pub(crate) fn kubeconfig(&self, server: &str, user: &str, credential: &Credential) -> String {
        let b64 = |text: &str| STANDARD.encode(text);
        // A user may be called anything; a JSON string is a YAML one.
        let user = serde_json::Value::from(user);
        let credential = match credential {
            Credential::Certificate(leaf) => format!(
                "client-certificate-data: {}\n    client-key-data: {}",
                b64(&leaf.certificate),
                b64(&leaf.key)
            ),
            Credential::Token(token) => format!("token: {token}"),
        };
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: belay\nclusters:\n- name: belay\n  \
             cluster:\n    server: {server}\n    certificate-authority-data: {ca}\nusers:\n- name: \
             {user}\n  user:\n    {credential}\ncontexts:\n- name: belay\n  context:\n    cluster: \
             belay\n    user: {user}\n",
            ca = b64(&self.ca_pem),
        )
    }

    fn roots(&self) -> Result<RootCertStore, PkiError> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.ca_pem.as_bytes())?)?;
        Ok(roots)
    }

    fn issue(
        &self,
        common_name: &str,
        organizations: &[String],
        names: &[String],
        usage: Use,
    ) -> Result<Leaf, PkiError> {
        let failed = |source| PkiError::Issue {
            name: common_name.to_owned(),
            source,
        };
        let key = KeyPair::generate().map_err(failed)?;
        let mut params = CertificateParams::new(names.to_vec()).map_err(failed)?;
        params.distinguished_name = subject(common_name, organizations);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![match usage {
            Use::Server => ExtendedKeyUsagePurpose::ServerAuth,
            Use::Client => ExtendedKeyUsagePurpose::ClientAuth,
        }];
        params.use_authority_key_identifier_extension = true;
        life(&mut params, LEAF_LIFE);
        let certificate = params.signed_by(&key, &self.issuer).map_err(failed)?;
        Ok(Leaf {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        })
    }
}

/// How a kubeconfig authenticates.
#[derive(Debug)]
pub(crate) enum Credential {
    Certificate(Leaf),
    Token(String),
}

fn make_ca() -> Result<Leaf, rcgen::Error> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name = subject("belay-ca", &[]);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    life(&mut params, CA_LIFE);
    let certificate = params.self_signed(&key)?;
    Ok(Leaf {
        certificate: certificate.pem(),
        key: key.serialize_pem(),
    })
}

fn subject(common_name: &str, organizations: &[String]) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    for organization in organizations {
        name.push(DnType::OrganizationName, organization.as_str());
    }
    name
}

/// Valid from five minutes ago, for clocks that are a little behind.
fn life(params: &mut CertificateParams, life: Duration) {
    let now = OffsetDateTime::now_utc();
    params.not_before = now - Duration::minutes(5);
    params.not_after = now + life;
}

/// The names and addresses a serving certificate needs for a listen address.
pub(crate) fn serving_names(listen: IpAddr, extra: &[String]) -> Vec<String> {
    let mut names: Vec<String> = ["localhost", "belay", "127.0.0.1", "::1"]
        .map(str::to_owned)
        .to_vec();
    if !listen.is_unspecified() {
        names.push(listen.to_string());
    }
    names.extend_from_slice(extra);
    names.sort();
    names.dedup();
    names
}

/// The SHA-256 of a certificate, in lower-case hex.
pub(crate) fn fingerprint(der: &[u8]) -> String {
    Sha256::digest(der)
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect()
}

/// The certificate the listener shows; replaced while it serves.
#[derive(Debug, Default)]
struct Serving(RwLock<Option<(Arc<CertifiedKey>, OffsetDateTime)>>);

impl Serving {
    fn set(&self, key: CertifiedKey, end: OffsetDateTime) {
        *self
            .0
            .write()
            .unwrap_or_else(std::sync::PoisonError::into_inner) = Some((Arc::new(key), end));
    }

    fn good_until(&self) -> Option<OffsetDateTime> {
        let current = self
            .0
            .read()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        current.as_ref().map(|(_, end)| *end)
    }
}

impl ResolvesServerCert for Serving {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let current = self
            .0
            .read()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        current.as_ref().map(|(key, _)| Arc::clone(key))
    }
}

/// Trust in exactly one certificate, whatever its names.
mod pinned {
    use std::sync::Arc;

    use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
    use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
    use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
    use rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};

    #[derive(Debug)]
    pub(super) struct Pinned {
        fingerprint: String,
        provider: Arc<CryptoProvider>,
    }

    impl Pinned {
        pub(super) fn new(fingerprint: &str, provider: Arc<CryptoProvider>) -> Self {
            Self {
                fingerprint: fingerprint.to_owned(),
                provider,
            }
        }
    }

    impl ServerCertVerifier for Pinned {
        fn verify_server_cert(
            &self,
            end_entity: &CertificateDer<'_>,
            _intermediates: &[CertificateDer<'_>],
            _server_name: &ServerName<'_>,
            _ocsp_response: &[u8],
            _now: UnixTime,
        ) -> Result<ServerCertVerified, Error> {
            if super::fingerprint(end_entity) == self.fingerprint {
                Ok(ServerCertVerified::assertion())
            } else {
                Err(Error::InvalidCertificate(
                    CertificateError::ApplicationVerificationFailure,
                ))
            }
        }

        fn verify_tls12_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            let algorithms = &self.provider.signature_verification_algorithms;
            verify_tls12_signature(message, cert, dss, algorithms)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            let algorithms = &self.provider.signature_verification_algorithms;
            verify_tls13_signature(message, cert, dss, algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.provider
                .signature_verification_algorithms
                .supported_schemes()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_authority_survives_a_restart_and_a_crash_between_its_two_files() {
        let dir = tempfile::tempdir().unwrap();
        let first = Pki::open(dir.path(), vec!["localhost".into()]).unwrap();
        let again = Pki::open(dir.path(), vec!["localhost".into()]).unwrap();
        assert_eq!(first.ca_pem(), again.ca_pem());
        fs::remove_file(dir.path().join("ca.crt")).unwrap();
        let anew = Pki::open(dir.path(), vec!["localhost".into()]).unwrap();
        assert_ne!(first.ca_pem(), anew.ca_pem());
    }

    #[test]
    fn a_client_certificate_names_its_identity() {
        let dir = tempfile::tempdir().unwrap();
        let pki = Pki::open(dir.path(), vec!["localhost".into()]).unwrap();
        let leaf = pki.client(&Identity::node("n1")).unwrap();
        let der = CertificateDer::from_pem_slice(leaf.certificate.as_bytes()).unwrap();
        assert_eq!(Identity::from_certificate(&der), Some(Identity::node("n1")));
    }

    #[test]
    fn a_damaged_authority_is_refused_with_advice() {
        let dir = tempfile::tempdir().unwrap();
        drop(Pki::open(dir.path(), vec![]).unwrap());
        fs::write(dir.path().join("ca.key"), "rubbish").unwrap();
        let error = Pki::open(dir.path(), vec![]).unwrap_err().to_string();
        assert!(error.contains("restore ca.crt and ca.key"), "{error}");
    }
}
