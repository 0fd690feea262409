//! The listener of a node, for clients and other nodes.

use super::member::Member;
use super::{client, peer};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

/// Accepts connections until the task is cancelled.
pub(crate) async fn serve(member: Arc<Member>, listener: TcpListener) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                tokio::spawn(connection(Arc::clone(&member), stream));
            }
            // For example too many open files: others may be closed meanwhile.
            Err(_) => sleep(Duration::from_millis(100)).await,
        }
    }
}

/// A connection of a node starts with the length of a message, whose first byte is zero. A client sends none.
async fn connection(member: Arc<Member>, stream: TcpStream) {
    let served = async {
        stream.set_nodelay(true)?;
        let mut first = [0];
        match stream.peek(&mut first).await? {
            0 => Ok(()),
            _ if first == [0] => peer::serve(member, stream).await,
            _ => client::serve(member, stream).await,
        }
    };
    match served.await {
        Ok(()) => {}
        // The other side has ended the connection.
        Err(error) if matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe) => {}
        Err(error) => eprintln!("a connection ends: {error}"),
    }
}
