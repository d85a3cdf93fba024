//! Who is asking: identities, client certificates and bearer tokens.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::RwLock;
use std::time::SystemTime;

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// A user name and its groups, as authentication found them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The user name: the certificate's common name, or what the token was made for.
    pub name: String,
    /// The groups: the certificate's organisations, or what the token was made for.
    pub groups: Vec<String>,
}

pub(crate) const MASTERS: &str = "system:masters";
pub(crate) const NODES: &str = "system:nodes";
pub(crate) const NODE_PREFIX: &str = "system:node:";
const CONTROLLER: &str = "system:belay:controller";
const CONTROL_PLANE: &str = "system:belay:controlplane";
const ANONYMOUS: &str = "system:anonymous";
const AUTHENTICATED: &str = "system:authenticated";
const UNAUTHENTICATED: &str = "system:unauthenticated";
/// What begins like this is for the server's own identities.
const RESERVED: &str = "system:";

/// What an identity is allowed to be in the fixed rules of [`crate::authority`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role<'a> {
    Admin,
    Node(&'a str),
    Controller,
    ControlPlane,
    Nobody,
}

impl Identity {
    fn of(name: impl Into<String>, groups: &[&str]) -> Self {
        Self {
            name: name.into(),
            groups: groups.iter().map(|g| (*g).to_owned()).collect(),
        }
    }

    /// May do everything.
    pub fn admin() -> Self {
        Self::of("belay:admin", &[MASTERS])
    }

    /// The agent of one node.
    pub fn node(node: &str) -> Self {
        Self::of(format!("{NODE_PREFIX}{node}"), &[NODES])
    }

    /// The product's controllers.
    pub fn controller() -> Self {
        Self::of(CONTROLLER, &[])
    }

    /// What stands in for a stock control plane.
    pub fn controlplane() -> Self {
        Self::of(CONTROL_PLANE, &[])
    }

    /// Somebody whose rights are what roles give.
    pub fn user(name: &str, groups: &[String]) -> Self {
        Self {
            name: name.to_owned(),
            groups: groups.to_vec(),
        }
    }

    pub(crate) fn anonymous() -> Self {
        Self::of(ANONYMOUS, &[])
    }

    pub(crate) fn is_anonymous(&self) -> bool {
        self.name == ANONYMOUS
    }

    /// The groups, and the one that tells whether anybody vouches for the name.
    pub(crate) fn all_groups(&self) -> impl Iterator<Item = &str> {
        let implied = if self.is_anonymous() {
            UNAUTHENTICATED
        } else {
            AUTHENTICATED
        };
        let own = self.groups.iter().map(String::as_str);
        own.filter(move |group| *group != implied)
            .chain(std::iter::once(implied))
    }

    /// Why no token can be made for this user: its name or a group of it means something here.
    pub(crate) fn reserved(&self) -> Option<String> {
        if self.name.is_empty() || self.groups.iter().any(String::is_empty) {
            return Some("a user and its groups need a name".to_owned());
        }
        if self.name.starts_with(RESERVED) {
            return Some(format!(
                "user names that begin with {RESERVED:?} are the server's own; a node gets its \
                 credentials with --node"
            ));
        }
        // Whoever may write to the data directory has the administrator's kubeconfig anyway.
        let wrong = |group: &&String| group.starts_with(RESERVED) && *group != MASTERS;
        let group = self.groups.iter().find(wrong)?;
        Some(format!(
            "the group {group:?} is the server's own; of those that begin with {RESERVED:?} only \
             {MASTERS:?} can be given, which may do everything"
        ))
    }

    pub(crate) fn role(&self) -> Role<'_> {
        let in_group = |g: &str| self.groups.iter().any(|x| x == g);
        if in_group(MASTERS) {
            return Role::Admin;
        }
        match self.name.strip_prefix(NODE_PREFIX) {
            Some(node) if in_group(NODES) && !node.is_empty() => Role::Node(node),
            _ if self.name == CONTROLLER => Role::Controller,
            _ if self.name == CONTROL_PLANE => Role::ControlPlane,
            _ => Role::Nobody,
        }
    }

    /// The subject of a client certificate that TLS has already verified.
    pub(crate) fn from_certificate(der: &[u8]) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let subject = certificate.subject();
        let name = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
        let groups = subject
            .iter_organization()
            .filter_map(|o| o.as_str().ok().map(str::to_owned))
            .collect();
        Some(Self { name, groups })
    }
}

/// Bearer tokens by their SHA-256. The file is the truth: a token made by another process while
/// the server runs is found on first use, and the ones it replaced are refused from then on.
#[derive(Debug)]
pub(crate) struct Tokens {
    path: PathBuf,
    loaded: RwLock<Loaded>,
}

/// Tells one version of the file from the next: every version is a new file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileState {
    inode: u64,
    modified: Option<SystemTime>,
}

impl FileState {
    fn of(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(path).ok()?;
        Some(Self {
            inode: metadata.ino(),
            modified: metadata.modified().ok(),
        })
    }
}

#[derive(Debug, Default)]
struct Loaded {
    state: Option<FileState>,
    by_hash: BTreeMap<String, Identity>,
}

impl Tokens {
    pub(crate) fn at(data_dir: &Path) -> Self {
        Self {
            path: data_dir.join("tokens.json"),
            loaded: RwLock::default(),
        }
    }

    pub(crate) fn identify(&self, token: &str) -> Option<Identity> {
        // Looking the hash up leaks nothing useful through timing: the key is a digest of the
        // secret, not the secret.
        let hash = hash(token);
        let state = FileState::of(&self.path)?;
        let known = |loaded: &Loaded| loaded.by_hash.get(&hash).cloned();
        {
            let loaded = self.loaded.read().ok()?;
            if loaded.state == Some(state) {
                return known(&loaded);
            }
        }
        let mut loaded = self.loaded.write().ok()?;
        loaded.by_hash = read(&self.path).ok()?;
        loaded.state = Some(state);
        known(&loaded)
    }

    /// Makes a token for `identity` and remembers its hash, durably, before returning it. It takes
    /// the place of older ones, which is how a token that leaked is revoked.
    pub(crate) fn create(&self, identity: &Identity) -> std::io::Result<String> {
        let token = format!(
            "{}{}",
            uuid::Uuid::new_v4().simple(),
            uuid::Uuid::new_v4().simple()
        );
        // Another may be making one at the same moment; the file is read and replaced by one at a
        // time. The lock ends with its file.
        let lock = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(self.path.with_extension("lock"))?;
        flock(&lock, FlockOperation::LockExclusive)?;
        let mut all = match read(&self.path) {
            Ok(all) => all,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => BTreeMap::new(),
            Err(e) => return Err(e),
        };
        all.retain(|_, other| other.name != identity.name);
        all.insert(hash(&token), identity.clone());
        write_private(&self.path, &serde_json::to_vec_pretty(&all)?)?;
        Ok(token)
    }
}

fn read(path: &Path) -> std::io::Result<BTreeMap<String, Identity>> {
    Ok(serde_json::from_slice(&fs::read(path)?)?)
}

fn hash(token: &str) -> String {
    Sha256::digest(token.as_bytes())
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect()
}

/// Replaces a file with mode 0600: whole and on disk, or not at all.
pub(crate) fn write_private(path: &Path, content: &[u8]) -> std::io::Result<()> {
    let temporary = path.with_extension(format!("tmp-{}", std::process::id()));
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    match path.parent() {
        Some(parent) => fs::File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_made_while_the_server_runs_is_known_and_an_unknown_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let server = Tokens::at(dir.path());
        assert_eq!(server.identify("nothing"), None);
        let token = Tokens::at(dir.path())
            .create(&Identity::node("n1"))
            .unwrap();
        assert_eq!(server.identify(&token), Some(Identity::node("n1")));
        let second = Tokens::at(dir.path())
            .create(&Identity::node("n2"))
            .unwrap();
        assert_eq!(server.identify(&token), Some(Identity::node("n1")));
        assert_eq!(server.identify(&second), Some(Identity::node("n2")));
        assert_eq!(server.identify(&token[1..]), None);
        let newer = Tokens::at(dir.path())
            .create(&Identity::node("n1"))
            .unwrap();
        assert_eq!(server.identify(&token), None, "replaced");
        assert_eq!(server.identify(&newer), Some(Identity::node("n1")));
    }

    #[test]
    fn a_new_token_takes_the_groups_of_the_old_one_away() {
        let dir = tempfile::tempdir().unwrap();
        let tokens = Tokens::at(dir.path());
        let more = Identity::user("ann", &["ops".to_owned()]);
        let old = tokens.create(&more).unwrap();
        assert_eq!(tokens.identify(&old), Some(more));
        let new = tokens.create(&Identity::user("ann", &[])).unwrap();
        assert_eq!(tokens.identify(&old), None);
        assert_eq!(tokens.identify(&new), Some(Identity::user("ann", &[])));
    }

    #[test]
    fn tokens_made_at_the_same_time_are_all_known() {
        let dir = tempfile::tempdir().unwrap();
        let make = |n: usize| {
            let who = Identity::user(&format!("u{n}"), &[]);
            (Tokens::at(dir.path()).create(&who).unwrap(), who)
        };
        let made: Vec<(String, Identity)> = std::thread::scope(|scope| {
            let makers: Vec<_> = (0..8).map(|n| scope.spawn(move || make(n))).collect();
            makers.into_iter().map(|m| m.join().unwrap()).collect()
        });
        let server = Tokens::at(dir.path());
        for (token, who) in made {
            assert_eq!(server.identify(&token), Some(who));
        }
    }

    #[test]
    fn names_that_mean_something_to_the_server_are_not_given_away() {
        let reserved = |name: &str, groups: &[&str]| {
            let groups: Vec<String> = groups.iter().map(|g| (*g).to_owned()).collect();
            Identity::user(name, &groups).reserved().is_some()
        };
        assert!(!reserved("ann", &[]));
        assert!(!reserved("ann", &["ops", MASTERS]));
        assert!(reserved("", &[]));
        assert!(reserved("ann", &[""]));
        assert!(reserved("system:node:n1", &["system:nodes"]));
        assert!(reserved(CONTROLLER, &[]));
        assert!(reserved(ANONYMOUS, &[]));
        assert!(reserved("ann", &["system:nodes"]));
    }

    #[test]
    fn everybody_with_credentials_is_in_the_group_of_those() {
        let groups = |who: &Identity| who.all_groups().map(str::to_owned).collect::<Vec<_>>();
        let ann = Identity::user("ann", &["ops".to_owned()]);
        assert_eq!(groups(&ann), ["ops", AUTHENTICATED]);
        assert_eq!(groups(&Identity::anonymous()), [UNAUTHENTICATED]);
    }

    #[test]
    fn a_node_name_without_the_group_is_nobody() {
        let forged = Identity {
            name: "system:node:n1".into(),
            groups: vec![],
        };
        assert_eq!(forged.role(), Role::Nobody);
        assert_eq!(Identity::node("n1").role(), Role::Node("n1"));
        assert_eq!(Identity::anonymous().role(), Role::Nobody);
    }
}
