//! Whether a server is spoken to directly, when the environment names a proxy. Pure.

use std::net::IpAddr;

/// Whether `host` is this machine, as far as its name says.
pub(super) fn is_loopback(host: &str) -> bool {
    let host = bare(host);
    let address = host.parse::<IpAddr>();
    address.map_or(host.eq_ignore_ascii_case("localhost"), |address| {
        address.is_loopback()
    })
}

/// Whether `$NO_PROXY`, a list of hosts, domains, addresses and networks, names this server.
pub(super) fn spares(no_proxy: &str, host: &str, port: u16) -> bool {
    let host = bare(host).to_ascii_lowercase();
    let address = host.parse::<IpAddr>().ok();
    no_proxy
        .split(',')
        .map(str::trim)
        .filter(|entry| !entry.is_empty())
        .any(|entry| match (address, entry.split_once('/')) {
            _ if entry == "*" => true,
            (Some(address), Some((network, bits))) => within(address, network, bits),
            (Some(address), None) => entry_of_port(entry, port)
                .is_some_and(|entry| bare(entry).parse::<IpAddr>() == Ok(address)),
            (None, _) => entry_of_port(entry, port).is_some_and(|entry| is_under(&host, entry)),
        })
}

/// A host as it stands in a URL, without the brackets of an IPv6 address.
fn bare(host: &str) -> &str {
    host.trim_start_matches('[').trim_end_matches(']')
}

/// The entry without its port; nothing where that is another port.
fn entry_of_port(entry: &str, port: u16) -> Option<&str> {
    if entry.parse::<IpAddr>().is_ok() {
        return Some(entry);
    }
    match entry.rsplit_once(':') {
        Some((host, own)) if own.bytes().all(|digit| digit.is_ascii_digit()) => {
            (own.parse() == Ok(port)).then_some(host)
        }
        _ => Some(entry),
    }
}

/// Whether a name is this domain or one beneath it.
fn is_under(host: &str, domain: &str) -> bool {
    let domain = domain.trim_start_matches("*.").trim_start_matches('.');
    let domain = domain.to_ascii_lowercase();
    host == domain
        || host
            .strip_suffix(&domain)
            .is_some_and(|rest| !domain.is_empty() && rest.ends_with('.'))
}

fn within(address: IpAddr, network: &str, bits: &str) -> bool {
    let (Ok(network), Ok(bits)) = (network.parse::<IpAddr>(), bits.parse::<u32>()) else {
        return false;
    };
    // What is shifted by the whole width is nothing: every address is within /0.
    match (address, network) {
        (IpAddr::V4(a), IpAddr::V4(n)) if bits <= 32 => {
            let differ = a.to_bits() ^ n.to_bits();
            differ.checked_shr(32 - bits).unwrap_or(0) == 0
        }
        (IpAddr::V6(a), IpAddr::V6(n)) if bits <= 128 => {
            let differ = a.to_bits() ^ n.to_bits();
            differ.checked_shr(128 - bits).unwrap_or(0) == 0
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_known_by_its_usual_names() {
        for host in ["127.0.0.1", "127.1.2.3", "localhost", "LocalHost", "[::1]"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in ["10.0.0.1", "example.com", "localhost.example.com", "[::2]"] {
            assert!(!is_loopback(host), "{host}");
        }
    }

    #[test]
    fn servers_are_spared_by_name_domain_address_and_network() {
        for (list, host, spared) in [
            ("", "a.b", false),
            ("*", "a.b", true),
            ("x, api.b ,y", "api.b", true),
            ("API.b", "api.b", true),
            ("b", "api.b", true),
            (".b", "api.b", true),
            ("*.b", "api.b", true),
            ("b", "apib", false),
            (".", "api.b", false),
            ("api.b:7443", "api.b", true),
            ("api.b:443", "api.b", false),
            ("10.0.0.0/8", "10.1.2.3", true),
            ("10.0.0.0/8", "11.1.2.3", false),
            ("0.0.0.0/0", "11.1.2.3", true),
            ("10.1.2.3", "10.1.2.3", true),
            ("10.1.2.3:7443", "10.1.2.3", true),
            ("10.1.2.30", "10.1.2.3", false),
            ("fd00::/8", "[fd00::1]", true),
            ("fd00::1", "[fd00::1]", true),
            ("[fd00::1]:7443", "[fd00::1]", true),
            ("10.0.0.0/99,10.0.0.0/x", "10.1.2.3", false),
        ] {
            assert_eq!(spares(list, host, 7443), spared, "{list:?} {host}");
        }
    }
}
