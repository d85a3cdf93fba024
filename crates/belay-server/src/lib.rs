//! A Kubernetes-compatible API server for one machine and a few nodes.
//!
//! ```text
//!   kubectl ---TLS---+                                  +--> read    --+
//!                    +--> serve --> api --> authority --+--> watch   --+--> belay-store
//!   roles --memory---+    (who?)   (route)  (may they?) +--> write   --+   ^ rbac: roles by subject
//!                                                       +--> delete  --+
//!                                                       +--> logs, sessions --> agent (mutual TLS)
//! ```
//!
//! Long-running tasks: the listener, one task per connection and per session handed through, the audit writer's thread, the
//! store's committer thread, and one that renews certificates and drops expired events.
//!
//! **Invariant:** handlers know no kinds. Everything about a kind is its entry in `registry`.
//!
//! **Invariant:** an identity belongs to the connection or the token. A header can ask to act as
//! somebody else, which is a right of its own. In-process roles are authorised like anyone.
//!
//! **Invariant:** an answer shows only what is on disk: the store makes a revision visible after
//! its group is synced.

mod admission;
mod agents;
mod api;
mod audit;
mod authority;
mod delete;
mod discovery;
mod expiry;
mod identity;
mod impersonation;
mod logs;
mod metrics;
mod object;
mod openapi;
mod pki;
mod preconditions;
mod query;
mod rbac;
mod read;
mod registry;
mod render;
mod review;
mod route;
mod select;
mod serve;
mod server;
mod sessions;
mod status;
mod watch;
mod write;

pub use identity::Identity;
pub use pki::PkiError;
pub use server::{
    Config, NewKubeconfig, Server, ServerError, create_node_token, create_user_token,
};
