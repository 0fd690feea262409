//! Calls of gRPC over HTTP/2: one message to the server, and one back.
//!
//! A channel is a connection of `h2` and nothing else: it takes less processor time in this process than the usual clients of gRPC, and needs no
//! compiler of protocol buffers.

use bytes::{BufMut as _, Bytes, BytesMut};
use h2::client::SendRequest;
use http::uri::{Authority, PathAndQuery};
use http::{HeaderMap, Request, Uri, Version};
use miette::{IntoDiagnostic as _, Result, WrapErr as _, bail, ensure};
use prost::Message;
use std::future::poll_fn;
use std::net::SocketAddr;
use tokio::net::TcpStream;

/// What is before a message: whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;

/// A connection.
pub(crate) struct Channel {
    requests: SendRequest<Bytes>,
    authority: Authority,
}

impl Channel {
    pub(crate) async fn connect(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).await.into_diagnostic()?;
        stream.set_nodelay(true).into_diagnostic()?;
        let (requests, connection) = h2::client::handshake(stream).await.into_diagnostic()?;
        tokio::spawn(async move {
            // A call that is under way fails with the connection.
            connection.await.ok();
        });
        let authority = Authority::try_from(address.to_string()).into_diagnostic()?;
        Ok(Self { requests, authority })
    }

    /// Calls a method, such as `/etcdserverpb.KV/Put`.
    pub(crate) async fn call<A: Message + Default>(
        &mut self,
        method: &'static str,
        message: &impl Message,
    ) -> Result<A> {
        let answer = self.exchange(method, message).await.wrap_err(method)?;
        ensure!(answer.len() >= PREFIX_BYTES && answer[0] == 0, "{method}: the answer has no message");
        A::decode(&answer[PREFIX_BYTES..]).into_diagnostic()
    }

    async fn exchange(&mut self, method: &'static str, message: &impl Message) -> Result<BytesMut> {
        let uri = Uri::builder()
            .scheme("http")
            .authority(self.authority.clone())
            .path_and_query(PathAndQuery::from_static(method))
            .build()
            .into_diagnostic()?;
        let request = Request::post(uri)
            .version(Version::HTTP_2)
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())
            .into_diagnostic()?;
        let mut bytes = BytesMut::with_capacity(PREFIX_BYTES + message.encoded_len());
        bytes.put_u8(0);
        bytes.put_u32(u32::try_from(message.encoded_len()).into_diagnostic()?);
        message.encode(&mut bytes).into_diagnostic()?;

        poll_fn(|context| self.requests.poll_ready(context)).await.into_diagnostic()?;
        let (response, mut stream) = self.requests.send_request(request, false).into_diagnostic()?;
        stream.send_data(bytes.freeze(), true).into_diagnostic()?;
        let (head, mut body) = response.await.into_diagnostic()?.into_parts();
        ensure!(head.status.is_success(), "the status is {}", head.status);
        let mut answer = BytesMut::new();
        while let Some(part) = body.data().await {
            let part = part.into_diagnostic()?;
            body.flow_control().release_capacity(part.len()).into_diagnostic()?;
            answer.extend_from_slice(&part);
        }
        // An error without a message has its status in the head.
        check(&body.trailers().await.into_diagnostic()?.unwrap_or(head.headers))?;
        Ok(answer)
    }
}

fn check(trailers: &HeaderMap) -> Result<()> {
    let text =
        |name| trailers.get(name).map_or("unknown".into(), |value| String::from_utf8_lossy(value.as_bytes()));
    match text("grpc-status").as_ref() {
        "0" => Ok(()),
        status => bail!("the server answers with status {status}: {}", text("grpc-message")),
    }
}
