//! Metrics for Prometheus, over HTTP. They are read when they are asked for.

use super::member::Member;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::sleep;

/// The connections at a time.
const CONNECTIONS: usize = 16;

/// How long the head of a request may take.
const HEAD: Duration = Duration::from_secs(5);

/// Reads the metrics of a node.
struct Metrics(Arc<Member>);

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (member, status) = (&self.0, self.0.status_here());
        let load = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
        let leader = status.leader.unwrap_or(0);
        let voters = status.nodes.iter().map(|node| u64::from(node.is_voter)).sum();
        for (name, help, value) in [
            ("pm_node", "The number of this node", status.node),
            ("pm_leader", "The number of the leader, or 0", leader),
            (
                "pm_is_leader",
                "Whether this node is the leader",
                u64::from(status.leader == Some(status.node)),
            ),
            ("pm_term", "The term", status.term),
            ("pm_voters", "The nodes that vote", voters),
            ("pm_last_log_index", "The last entry of the log", status.last_log_index),
            ("pm_applied_index", "The last entry that the state has", status.applied_index),
            ("pm_clients", "Connections of clients", load(&member.clients)),
            ("pm_store_bytes", "The length of the store", load(&member.counts.store_bytes)),
            ("pm_store_used_bytes", "The space in use of the store", load(&member.counts.used_bytes)),
            (
                "pm_store_available_bytes",
                "The space of the store that entries of any length can take",
                load(&member.counts.available_bytes),
            ),
            ("pm_log_bytes", "The length of the log's entries", load(&member.counts.log_bytes)),
        ] {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(value).encode(metric)?;
        }
        let help = "The entries of the leader's log that a node does not have; only the leader knows";
        let mut lags = encoder.encode_descriptor("pm_lag", help, None, MetricType::Gauge)?;
        for node in status.nodes {
            if let Some(lag) = node.lag {
                ConstGauge::new(lag).encode(lags.encode_family(&[("node", node.id.to_string())])?)?;
            }
        }
        let reads = encoder.encode_descriptor("pm_reads", "Reads of clients", None, MetricType::Counter)?;
        ConstCounter::new(load(&member.counts.reads)).encode(reads)?;
        let help = "Writes of clients by their outcome";
        let mut writes = encoder.encode_descriptor("pm_writes", help, None, MetricType::Counter)?;
        for (outcome, count) in ["executed", "not_executed", "unknown"].iter().zip(&member.counts.writes) {
            ConstCounter::new(load(count)).encode(writes.encode_family(&[("outcome", *outcome)])?)?;
        }
        Ok(())
    }
}

/// Serves `/metrics` until the task is cancelled.
pub(crate) async fn serve_metrics(member: Arc<Member>, listener: TcpListener) {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Metrics(member)));
    let (registry, connections) = (Arc::new(registry), Arc::new(Semaphore::new(CONNECTIONS)));
    loop {
        let Ok(permit) = Arc::clone(&connections).acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            // For example too many open files: others may be closed meanwhile.
            Err(_) => {
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let registry = Arc::clone(&registry);
        tokio::spawn(async move {
            let answer = service_fn(|request| std::future::ready(answer(&registry, &request)));
            let mut server = hyper::server::conn::http1::Builder::new();
            server.timer(TokioTimer::new()).header_read_timeout(HEAD);
            // The client's errors are its own.
            drop(server.serve_connection(TokioIo::new(stream), answer).await);
            drop(permit);
        });
    }
}

fn answer(
    registry: &Registry,
    request: &Request<Incoming>,
) -> Result<Response<Full<Bytes>>, hyper::http::Error> {
    if request.uri().path() != "/metrics" || request.method() != Method::GET {
        return Response::builder().status(StatusCode::NOT_FOUND).body("only GET /metrics\n".into());
    }
    let mut page = String::new();
    match text::encode(&mut page, registry) {
        Ok(()) => Response::builder()
            .header(CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")
            .body(page.into()),
        Err(error) => {
            Response::builder().status(StatusCode::INTERNAL_SERVER_ERROR).body(format!("{error}\n").into())
        }
    }
}
