//! Certificates and kubeconfigs of a test cluster.

use std::{
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
};

use anyhow::Context;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};

/// A certificate authority and the directory that its certificates go to.
pub(super) struct Credentials {
    dir: PathBuf,
    issuer: Issuer<'static, KeyPair>,
    server: String,
}

impl Credentials {
    pub(super) fn create(dir: &Path, server: String) -> anyhow::Result<Self> {
        fs::create_dir_all(dir)?;
        let mut params = CertificateParams::default();
        params
            .distinguished_name
            .push(DnType::CommonName, "belay-test-ca");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        let key = KeyPair::generate()?;
        fs::write(dir.join("ca.crt"), params.self_signed(&key)?.pem())?;
        // Tokens of service accounts are signed with a key of their own.
        let tokens = KeyPair::generate()?;
        fs::write(dir.join("sa.key"), tokens.serialize_pem())?;
        fs::write(dir.join("sa.pub"), tokens.public_key_pem())?;
        Ok(Self {
            dir: dir.to_owned(),
            issuer: Issuer::new(params, key),
            server,
        })
    }

    /// A serving certificate, as `NAME.crt` and `NAME.key`.
    pub(super) fn serving(&self, name: &str, addresses: &[IpAddr]) -> anyhow::Result<()> {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()])?;
        params
            .subject_alt_names
            .extend(addresses.iter().copied().map(SanType::IpAddress));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(name, &params)
    }

    /// A client's certificate and its kubeconfig, as `NAME.kubeconfig`.
    pub(super) fn client(&self, name: &str, user: &str, groups: &[&str]) -> anyhow::Result<()> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, user);
        for group in groups {
            params
                .distinguished_name
                .push(DnType::OrganizationName, *group);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(name, &params)?;
        let file = |ending: &str| self.dir.join(format!("{name}.{ending}"));
        let (certificate, key) = (file("crt"), file("key"));
        let user = format!(
            "client-certificate: {}\n    client-key: {}",
            certificate.display(),
            key.display()
        );
        kubeconfig(&self.dir, &self.server, name, &user).map(drop)
    }

    fn sign(&self, name: &str, params: &CertificateParams) -> anyhow::Result<()> {
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        fs::write(self.dir.join(format!("{name}.crt")), certificate.pem())?;
        fs::write(self.dir.join(format!("{name}.key")), key.serialize_pem())?;
        Ok(())
    }
}

/// Writes `NAME.kubeconfig` for a user who is described in YAML; returns its path.
pub(super) fn kubeconfig(
    dir: &Path,
    server: &str,
    name: &str,
    user: &str,
) -> anyhow::Result<PathBuf> {
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: test\n\
         clusters:\n- name: test\n  cluster:\n    server: {server}\n    certificate-authority: {}\n\
         users:\n- name: test\n  user:\n    {user}\n\
         contexts:\n- name: test\n  context: {{cluster: test, user: test}}\n",
        dir.join("ca.crt").display(),
    );
    let path = dir.join(format!("{name}.kubeconfig"));
    fs::write(&path, text).context("cannot write a kubeconfig")?;
    Ok(path)
}
