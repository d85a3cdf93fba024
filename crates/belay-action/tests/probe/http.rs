use super::*;
use ::http::{HeaderMap, Request, Response};
use belay_action::probe::HttpGet;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// What a server was asked, in order: path and headers.
pub(crate) type Asked = Arc<Mutex<Vec<(String, HeaderMap)>>>;

pub(crate) fn answer(code: u16, headers: &[(&str, &str)]) -> Response<Full<Bytes>> {
    let mut answer = Response::builder().status(code);
    for (name, value) in headers {
        answer = answer.header(*name, *value);
    }
    answer.body(Full::new(Bytes::from("words"))).unwrap()
}

async fn talk(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    asked: Asked,
    reply: impl Fn(&str) -> Response<Full<Bytes>>,
) {
    let service = service_fn(|request: Request<Incoming>| {
        let path = request.uri().to_string();
        let answer = reply(&path);
        asked
            .lock()
            .unwrap()
            .push((path, request.headers().clone()));
        async move { Ok::<_, Infallible>(answer) }
    });
    let _ = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

/// A server that replies to a path as the test wants.
pub(crate) async fn serve(
    reply: impl Fn(&str) -> Response<Full<Bytes>> + Clone + Send + Sync + 'static,
) -> (SocketAddr, Asked) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let asked = Asked::default();
    let kept = Arc::clone(&asked);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(talk(stream, Arc::clone(&kept), reply.clone()));
        }
    });
    (address, asked)
}

/// The same with a certificate that nobody has signed, for a name that is not its own.
async fn serve_tls() -> (SocketAddr, Asked) {
    let made = rcgen::generate_simple_self_signed(vec!["another.example".to_owned()]).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let asked = Asked::default();
    let kept = Arc::clone(&asked);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            if let Ok(stream) = acceptor.accept(stream).await {
                tokio::spawn(talk(stream, Arc::clone(&kept), |_: &str| answer(204, &[])));
            }
        }
    });
    (address, asked)
}

/// A server that sends these bytes to everyone who asks, and then what `more` says.
async fn raw(bytes: &'static [u8], more: fn(TcpStream) -> Option<TcpStream>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut open = Vec::new();
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            // The question is read first: what nobody read would reset the connection.
            stream.readable().await.unwrap();
            let _ = stream.try_read(&mut [0; 4096]);
            let _ = stream.write_all(bytes).await;
            open.extend(more(stream));
        }
    });
    address
}

fn get(address: SocketAddr, path: &str) -> HttpGet {
    HttpGet {
        tls: false,
        host: address.ip().to_string(),
        port: address.port(),
        path: path.into(),
        headers: vec![],
    }
}

async fn ask(request: HttpGet) -> Result<(), String> {
    once(Check::Http(request), LONG).await
}

fn paths(asked: &Asked) -> Vec<String> {
    let asked = asked.lock().unwrap();
    asked.iter().map(|(path, _)| path.clone()).collect()
}

#[tokio::test]
async fn codes_from_200_to_399_are_success_and_others_are_told() {
    let (address, _) = serve(|path| answer(path[1..].parse().unwrap(), &[])).await;
    for code in [200, 204, 299, 300, 304, 399] {
        assert_eq!(ask(get(address, &code.to_string())).await, Ok(()), "{code}");
    }
    for code in [400, 404, 500, 503, 599] {
        let said = ask(get(address, &format!("/{code}"))).await;
        assert_eq!(said, Err(format!("HTTP {code}")));
    }
}

#[tokio::test]
async fn a_server_that_recovers_is_found_by_a_later_try() {
    let bad = Arc::new(std::sync::atomic::AtomicU32::new(3));
    let left = Arc::clone(&bad);
    let (address, asked) = serve(move |_| {
        let ill = left
            .fetch_update(
                std::sync::atomic::Ordering::SeqCst,
                std::sync::atomic::Ordering::SeqCst,
                |left| left.checked_sub(1),
            )
            .is_ok();
        answer(if ill { 503 } else { 200 }, &[])
    })
    .await;
    let mut probe = probe(Check::Http(get(address, "/")), LONG);
    probe.cadence.success_threshold = 2;
    let never = CancellationToken::new();
    let probed = verify(&Idle::new(), &probe, course(LONG), &never).await;
    assert_eq!(probed, Probed::Succeeded);
    assert_eq!(paths(&asked).len(), 5, "three bad ones, two good ones");
}

#[tokio::test]
async fn headers_are_sent_and_the_usual_ones_can_be_replaced_or_left_out() {
    let (address, asked) = serve(|_| answer(200, &[])).await;
    ask(get(address, "/x?y=z")).await.unwrap();
    let mut request = get(address, "/x");
    let headers = [
        ("Host", "app.example"),
        ("X-A", "1"),
        ("X-A", "2"),
        ("User-Agent", ""),
        ("Accept", "text/plain"),
    ];
    request.headers = headers.map(|(a, b)| (a.to_owned(), b.to_owned())).to_vec();
    ask(request).await.unwrap();

    let asked = asked.lock().unwrap();
    let (path, plain) = &asked[0];
    assert_eq!(path, "/x?y=z");
    assert_eq!(plain["host"], address.to_string());
    assert_eq!(plain["accept"], "*/*");
    let agent = plain["user-agent"].to_str().unwrap();
    assert!(agent.starts_with("belay-probe/"), "{agent}");
    let (_, own) = &asked[1];
    assert_eq!(
        (&own["host"], &own["accept"]),
        (
            &"app.example".parse().unwrap(),
            &"text/plain".parse().unwrap()
        )
    );
    assert!(!own.contains_key("user-agent"));
    assert_eq!(own.get_all("x-a").iter().count(), 2);
}

#[tokio::test]
async fn redirects_are_followed_on_the_same_host_only() {
    let (other, elsewhere) = serve(|_| answer(500, &[])).await;
    let away = format!("http://localhost:{}/away", other.port());
    let (address, asked) = serve(move |path| match path {
        "/relative" => answer(302, &[("Location", "good")]),
        "/bad" => answer(307, &[("Location", "/ill")]),
        "/away" => answer(301, &[("Location", &away)]),
        "/ill" => answer(503, &[]),
        "/nowhere" => answer(302, &[]),
        "/odd" => answer(302, &[("Location", "mailto:me")]),
        _ => answer(200, &[]),
    })
    .await;
    assert_eq!(ask(get(address, "/relative")).await, Ok(()));
    assert_eq!(paths(&asked), ["/relative", "/good"]);
    assert_eq!(ask(get(address, "/bad")).await, Err("HTTP 503".into()));
    // Not followed: the redirect itself is the answer.
    assert_eq!(ask(get(address, "/away")).await, Ok(()));
    assert_eq!(paths(&elsewhere), Vec::<String>::new());
    assert_eq!(ask(get(address, "/nowhere")).await, Ok(()));
    let said = ask(get(address, "/odd")).await.unwrap_err();
    assert!(said.contains("mailto:me"), "{said}");
    // Another port of the same host is followed.
    let (first, _) = serve(move |_| {
        let there = format!("http://{address}/ill");
        answer(308, &[("Location", &there)])
    })
    .await;
    assert_eq!(ask(get(first, "/")).await, Err("HTTP 503".into()));
}

#[tokio::test]
async fn a_circle_of_redirects_ends() {
    let (address, asked) = serve(|_| answer(302, &[("Location", "/again")])).await;
    let said = ask(get(address, "/")).await;
    assert_eq!(said, Err("stopped after 10 redirects".to_owned()));
    assert_eq!(paths(&asked).len(), 10);
}

#[tokio::test]
async fn https_takes_any_certificate() {
    let (address, asked) = serve_tls().await;
    let mut request = get(address, "/secure");
    request.tls = true;
    assert_eq!(ask(request).await, Ok(()));
    assert_eq!(paths(&asked), ["/secure"]);
    // And plain HTTP to it is no success.
    assert!(ask(get(address, "/")).await.is_err());
}

#[tokio::test]
async fn a_server_that_does_not_answer_in_time_fails_the_try() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let check = Check::Http(get(silent.local_addr().unwrap(), "/"));
    let said = once(check, Duration::from_millis(200)).await;
    assert_eq!(said, Err("no answer within 0.2 s".to_owned()));
    // A body that does not come is no answer either.
    let head = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf";
    let check = Check::Http(get(raw(head, Some).await, "/"));
    let said = once(check, Duration::from_millis(200)).await;
    assert_eq!(said, Err("no answer within 0.2 s".to_owned()));
}

#[tokio::test]
async fn an_answer_that_breaks_off_or_is_no_http_fails_with_words() {
    let head = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf";
    for bytes in [head.as_slice(), b"SSH-2.0-x\r\n", b""] {
        let said = ask(get(raw(bytes, |_| None).await, "/")).await.unwrap_err();
        assert!(said.starts_with("no HTTP answer: "), "{said}");
    }
}

#[tokio::test]
async fn an_endless_body_is_not_read_to_its_end() {
    let endless = b"HTTP/1.1 200 OK\r\n\r\n";
    fn flood(mut stream: TcpStream) -> Option<TcpStream> {
        tokio::spawn(async move { while stream.write_all(&[b'x'; 4096]).await.is_ok() {} });
        None
    }
    assert_eq!(ask(get(raw(endless, flood).await, "/")).await, Ok(()));
}
