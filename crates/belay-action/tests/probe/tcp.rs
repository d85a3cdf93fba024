use super::*;
use tokio::net::TcpListener;

/// A port that nobody listens on. Bound for a moment, so that nobody else is given it soon.
async fn closed() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap().port()
}

fn tcp(port: u16) -> Check {
    Check::Tcp {
        host: "127.0.0.1".into(),
        port,
    }
}

#[tokio::test]
async fn a_port_that_takes_connections_is_success() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    assert_eq!(once(tcp(port), LONG).await, Ok(()));
}

#[tokio::test]
async fn a_port_that_nobody_listens_on_says_so() {
    let port = closed().await;
    let said = once(tcp(port), LONG).await.unwrap_err();
    let expected = format!("cannot connect to 127.0.0.1:{port}: Connection refused");
    assert!(said.starts_with(&expected), "{said}");
}

#[tokio::test]
async fn it_is_tried_again_until_the_port_is_there() {
    let port = closed().await;
    let target = Idle::new();
    let probe = probe(tcp(port), LONG);
    let never = CancellationToken::new();
    let probing = verify(&target, &probe, course(LONG), &never);
    let opening = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        TcpListener::bind(("127.0.0.1", port)).await.unwrap()
    };
    let (probed, _listener) = tokio::join!(probing, opening);
    assert_eq!(probed, Probed::Succeeded);
}

#[tokio::test]
async fn when_the_time_is_over_it_tells_what_was_said_last() {
    let target = Idle::new();
    let probe = probe(tcp(closed().await), LONG);
    // Long enough for a first try also on a busy machine.
    let course = course(Duration::from_secs(5));
    let probed = verify(&target, &probe, course, &CancellationToken::new()).await;
    let Probed::TimedOut { last: Some(last) } = probed else {
        panic!("{probed:?}");
    };
    assert!(last.contains("Connection refused"), "{last}");
}

#[tokio::test]
async fn a_delay_longer_than_the_time_leaves_nothing_to_tell() {
    let target = Idle::new();
    let mut probe = probe(tcp(closed().await), LONG);
    probe.cadence.initial_delay = LONG;
    let course = course(Duration::from_millis(50));
    let probed = verify(&target, &probe, course, &CancellationToken::new()).await;
    assert_eq!(probed, Probed::TimedOut { last: None });
}

#[tokio::test]
async fn the_end_of_the_target_and_a_cancel_end_it_at_once() {
    let mut probe = probe(tcp(closed().await), LONG);
    // Neither is found out by the next try.
    probe.cadence.period = LONG * 2;
    let target = Idle::new();
    let never = CancellationToken::new();
    let (probed, ()) = tokio::join!(verify(&target, &probe, course(LONG * 2), &never), async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        target.ended.send_replace(true);
    });
    assert_eq!(probed, Probed::TargetEnded);

    let target = Idle::new();
    let cancel = CancellationToken::new();
    let (probed, ()) = tokio::join!(verify(&target, &probe, course(LONG * 2), &cancel), async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        cancel.cancel();
    });
    assert_eq!(probed, Probed::Cancelled);
}
