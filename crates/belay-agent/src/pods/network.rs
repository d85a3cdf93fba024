//! What a pod knows of the network: its own name, the names of others, and the ports of the node
//! that lead to it. In a kubelet's words, as far as there is something of it on this node.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use belay_api::pod::Pod;
use belay_runtime::{Dns, HostPort, Mount, Propagation, Protocol};
use serde_json::Value;

use super::contents;

/// Where names are looked up first.
const HOSTS: &str = "/etc/hosts";
/// How the node resolves names.
pub(crate) const RESOLV_CONF: &str = "/etc/resolv.conf";
/// The longest name of a host.
const LONGEST_HOSTNAME: usize = 63;

const LOCAL_HOSTS: &str = "# Kubernetes-managed hosts file.\n\
    127.0.0.1\tlocalhost\n\
    ::1\tlocalhost ip6-localhost ip6-loopback\n\
    fe00::0\tip6-localnet\n\
    fe00::0\tip6-mcastprefix\n\
    fe00::1\tip6-allnodes\n\
    fe00::2\tip6-allrouters\n";
const HOST_NETWORK: &str = "# Kubernetes-managed hosts file (host network).\n";
const ALIASES: &str = "\n# Entries added by HostAliases.\n";

/// The name of the host that a pod's containers are on.
pub(crate) fn hostname(pod: &Pod) -> String {
    let hostname = pod.spec.other.get("hostname").and_then(Value::as_str);
    let mut hostname = hostname.unwrap_or(pod.name()).to_owned();
    hostname.truncate(hostname.floor_char_boundary(LONGEST_HOSTNAME));
    hostname.trim_end_matches(['-', '.']).to_owned()
}

pub(crate) fn is_on_host_network(pod: &Pod) -> bool {
    pod.spec.other.get("hostNetwork") == Some(&Value::Bool(true))
}

/// The hosts that a pod knows by name: itself at its address, or those of the node, and its aliases.
fn hosts(pod: &Pod, address: &str, of_node: &str) -> String {
    let mut text = if is_on_host_network(pod) {
        format!("{HOST_NETWORK}{}\n", of_node.trim_end())
    } else {
        format!("{LOCAL_HOSTS}{address}\t{}\n", hostname(pod))
    };
    let aliases = list(pod.spec.other.get("hostAliases"));
    if !aliases.is_empty() {
        text.push_str(ALIASES);
    }
    for alias in aliases {
        let ip = alias["ip"].as_str().unwrap_or_default();
        let names: Vec<&str> = strings(alias.get("hostnames")).collect();
        text.push_str(&format!("{ip}\t{}\n", names.join("\t")));
    }
    text
}

/// Writes the hosts that a pod knows into its directory, unless they are there, and returns how a
/// container of it sees them; blocks. `None` if it mounts something of its own there.
///
/// Containers may write there. What they made of it stays with those that run; one that starts has
/// what the pod knows.
pub(crate) fn hosts_mount(
    dir: &Path,
    pod: &Pod,
    container: &str,
    address: &str,
    mounts: &[Mount],
) -> io::Result<Option<Mount>> {
    let at = Path::new(HOSTS);
    if mounts.iter().any(|mount| mount.container_path == at) {
        return Ok(None);
    }
    let of_node = if is_on_host_network(pod) {
        fs::read_to_string(HOSTS)?
    } else {
        String::new()
    };
    let text = hosts(pod, address, &of_node);
    let file = dir.join("etc-hosts");
    if !contents::is(&file, text.as_bytes()) {
        fs::create_dir_all(dir)?;
        // Other containers of the pod may be started at the same time, and nobody reads a part.
        let new = dir.join(format!("etc-hosts.{container}"));
        fs::write(&new, text)?;
        // Whoever it runs as may read, whatever the agent's mask is.
        fs::set_permissions(&new, fs::Permissions::from_mode(0o644))?;
        fs::rename(&new, &file)?;
    }
    Ok(Some(Mount {
        host_path: file,
        container_path: at.to_owned(),
        read_only: false,
        propagation: Propagation::None,
    }))
}

/// How a pod resolves names, if not as the node does; blocks.
pub(crate) fn dns(pod: &Pod) -> io::Result<Option<Dns>> {
    resolver(pod, &|| fs::read_to_string(RESOLV_CONF))
}

/// What the pod says is added to what the node says, unless that is not wanted. Without what the node
/// says a pod that asked for it would have no name server for as long as its sandbox lives.
fn resolver(pod: &Pod, of_node: &dyn Fn() -> io::Result<String>) -> io::Result<Option<Dns>> {
    let config = pod.spec.other.get("dnsConfig").filter(|it| it.is_object());
    let own_only = pod.spec.other.get("dnsPolicy").and_then(Value::as_str) == Some("None");
    let mut dns = match (own_only, config) {
        (false, None) => return Ok(None),
        (false, Some(_)) => parse(&of_node()?),
        (true, _) => Dns::default(),
    };
    let config = config.unwrap_or(&Value::Null);
    let add = |all: &mut Vec<String>, more: &Value| {
        for one in strings(Some(more)) {
            if !all.iter().any(|known| known == one) {
                all.push(one.to_owned());
            }
        }
    };
    add(&mut dns.servers, &config["nameservers"]);
    add(&mut dns.searches, &config["searches"]);
    for option in list(config.get("options")) {
        let name = option["name"].as_str().unwrap_or_default();
        let same = |known: &String| known.split(':').next() == Some(name);
        dns.options.retain(|known| !same(known));
        dns.options.push(match option["value"].as_str() {
            Some(value) => format!("{name}:{value}"),
            None => name.to_owned(),
        });
    }
    Ok(Some(dns))
}

/// Reads a `resolv.conf`.
fn parse(text: &str) -> Dns {
    let mut dns = Dns::default();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        let word = words.next();
        let rest = words.map(str::to_owned);
        match word {
            Some("nameserver") => dns.servers.extend(rest.take(1)),
            Some("search" | "domain") => dns.searches = rest.collect(),
            Some("options") => dns.options.extend(rest),
            _ => {}
        }
    }
    dns
}

/// The ports of the node that lead to a pod with a network of its own.
pub(crate) fn ports(pod: &Pod) -> Vec<HostPort> {
    if is_on_host_network(pod) {
        return Vec::new();
    }
    let sidecars = pod.spec.init_containers.iter();
    let sidecars = sidecars.filter(|container| container.is_sidecar());
    let containers = pod.spec.containers.iter().chain(sidecars);
    containers
        .flat_map(|container| list(container.other.get("ports")))
        .filter_map(|port| {
            let number = |field: &str| u16::try_from(port[field].as_u64()?).ok();
            Some(HostPort {
                protocol: match port["protocol"].as_str() {
                    Some("UDP") => Protocol::Udp,
                    Some("SCTP") => Protocol::Sctp,
                    _ => Protocol::Tcp,
                },
                container_port: number("containerPort")?,
                host_port: number("hostPort").filter(|port| *port > 0)?,
                host_ip: port["hostIP"].as_str().unwrap_or_default().to_owned(),
            })
        })
        .collect()
}

fn list(value: Option<&Value>) -> &[Value] {
    value
        .and_then(Value::as_array)
        .map_or(&[], |list| list.as_slice())
}

fn strings(value: Option<&Value>) -> impl Iterator<Item = &str> {
    list(value).iter().filter_map(Value::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    // `json!` literals read better without a borrow.
    #[allow(clippy::needless_pass_by_value)]
    fn pod(mut spec: Value) -> Pod {
        let fields = spec.as_object_mut().unwrap();
        fields.entry("containers").or_insert(json!([{"name": "c"}]));
        serde_json::from_value(json!({
            "metadata": {"name": "db-0", "namespace": "ns", "uid": "u"}, "spec": spec,
        }))
        .unwrap()
    }

    #[test]
    fn a_pod_knows_itself_and_its_aliases_by_name() {
        let aliases = json!([{"ip": "192.0.2.1", "hostnames": ["a", "b.example"]}]);
        let own = hosts(&pod(json!({"hostAliases": aliases})), "10.0.0.5", "");
        assert!(own.contains("127.0.0.1\tlocalhost\n"), "{own}");
        assert!(own.contains("\n10.0.0.5\tdb-0\n"), "{own}");
        assert!(own.ends_with("\n192.0.2.1\ta\tb.example\n"), "{own}");
        let host = json!({"hostNetwork": true, "hostAliases": aliases});
        let host = hosts(&pod(host), "10.0.0.5", "192.0.2.9 node");
        assert!(host.contains("\n192.0.2.9 node\n"), "{host}");
        assert!(!host.contains("db-0"), "{host}");
        assert!(host.ends_with("\n192.0.2.1\ta\tb.example\n"), "{host}");
    }

    #[test]
    fn the_hosts_file_is_mounted_unless_the_container_has_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let at = |mounts: &[Mount]| {
            hosts_mount(dir.path(), &pod(json!({})), "c", "10.0.0.5", mounts).unwrap()
        };
        let mount = at(&[]).unwrap();
        let written = fs::read_to_string(&mount.host_path).unwrap();
        assert!(written.contains("10.0.0.5\tdb-0"), "{written}");
        assert_eq!(mount.container_path, Path::new("/etc/hosts"));
        assert_eq!(at(&[mount]), None);
        let left = fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(left, 1);
    }

    #[test]
    fn what_a_container_made_of_the_hosts_file_the_next_one_does_not_see() {
        let dir = tempfile::tempdir().unwrap();
        let make = || {
            let made = hosts_mount(dir.path(), &pod(json!({})), "c", "10.0.0.5", &[]);
            made.unwrap().unwrap().host_path
        };
        let path = make();
        let written = fs::read_to_string(&path).unwrap();
        let huge = 1 << 42;
        let before = fs::OpenOptions::new().write(true).open(&path).unwrap();
        before.set_len(huge).unwrap();
        assert_eq!(fs::read_to_string(make()).unwrap(), written);
        // Whoever runs sees the file that it has mounted.
        assert_eq!(before.metadata().unwrap().len(), huge);
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
        assert_eq!(fs::read_to_string(make()).unwrap(), written);
        assert!(fs::symlink_metadata(&path).unwrap().is_file());
    }

    #[test]
    fn names_are_resolved_as_on_the_node_with_what_the_pod_adds() {
        let text = "# x\nnameserver 192.0.2.1\nsearch one two\noptions ndots:1 edns0\n";
        let of_node = || Ok(text.to_owned());
        let told = |spec: Value| resolver(&pod(spec), &of_node).unwrap();
        assert_eq!(told(json!({"dnsPolicy": "ClusterFirst"})), None);
        let config = json!({"nameservers": ["192.0.2.2", "192.0.2.1"], "searches": ["three"],
                            "options": [{"name": "ndots", "value": "5"}, {"name": "rotate"}]});
        let texts = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>();
        let added = told(json!({"dnsConfig": config})).unwrap();
        assert_eq!(added.servers, texts(&["192.0.2.1", "192.0.2.2"]));
        assert_eq!(added.searches, texts(&["one", "two", "three"]));
        assert_eq!(added.options, texts(&["edns0", "ndots:5", "rotate"]));
        let own = told(json!({"dnsPolicy": "None", "dnsConfig": config})).unwrap();
        assert_eq!(own.servers, texts(&["192.0.2.2", "192.0.2.1"]));
        assert_eq!(own.searches, texts(&["three"]));
    }

    #[test]
    fn a_resolver_of_the_node_that_cannot_be_read_is_missed_only_by_who_needs_it() {
        let of_node = || Err(io::ErrorKind::NotFound.into());
        let told = |spec: Value| resolver(&pod(spec), &of_node);
        let config = json!({"options": [{"name": "ndots", "value": "5"}]});
        let missed = told(json!({"dnsConfig": config})).unwrap_err();
        assert_eq!(missed.kind(), io::ErrorKind::NotFound);
        assert_eq!(told(json!({})).unwrap(), None);
        let own = told(json!({"dnsPolicy": "None", "dnsConfig": config})).unwrap();
        assert_eq!(own.unwrap().options, ["ndots:5"]);
    }

    #[test]
    fn ports_of_the_node_lead_to_a_pod_with_a_network_of_its_own() {
        let port = json!({"containerPort": 53, "hostPort": 5353, "protocol": "UDP",
                          "hostIP": "127.0.0.1"});
        let plain = json!({"containerPort": 80});
        let containers = json!([{"name": "c", "ports": [port, plain]}]);
        let expected = HostPort {
            protocol: Protocol::Udp,
            container_port: 53,
            host_port: 5353,
            host_ip: "127.0.0.1".to_owned(),
        };
        let own = pod(json!({"containers": containers}));
        assert_eq!(ports(&own), [expected]);
        let host = pod(json!({"containers": containers, "hostNetwork": true}));
        assert_eq!(ports(&host), []);
    }
}
