//! Replies, and their bytes.

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// A short text, such as `OK`.
    Simple(&'static str),
    /// A word for the kind of the error, and a message.
    Error(String),
    Integer(i64),
    Bulk(Vec<u8>),
    Nil,
    Array(Vec<Reply>),
}

impl Reply {
    pub(crate) const OK: Self = Self::Simple("OK");

    pub(crate) fn error(message: impl Into<String>) -> Self {
        Self::Error(message.into())
    }

    pub(crate) fn bulk(bytes: impl Into<Vec<u8>>) -> Self {
        Self::Bulk(bytes.into())
    }

    /// The value of a key.
    pub(crate) fn of(value: Option<Vec<u8>>) -> Self {
        value.map_or(Self::Nil, Self::Bulk)
    }

    /// Appends the bytes of the reply.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let mut line = |mark: char, text: &str| {
            let text = text.replace(['\r', '\n'], " ");
            out.extend_from_slice(format!("{mark}{text}\r\n").as_bytes());
        };
        match self {
            Self::Simple(text) => line('+', text),
            Self::Error(message) => line('-', message),
            Self::Integer(number) => line(':', &number.to_string()),
            Self::Nil => line('$', "-1"),
            Self::Bulk(bytes) => {
                line('$', &bytes.len().to_string());
                out.extend_from_slice(bytes);
                out.extend_from_slice(b"\r\n");
            }
            Self::Array(replies) => {
                line('*', &replies.len().to_string());
                replies.iter().for_each(|reply| reply.encode(out));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_have_the_bytes_of_the_protocol() {
        let reply = Reply::Array(vec![
            Reply::OK,
            Reply::error("ERR a\r\nb"),
            Reply::Integer(-3),
            Reply::Nil,
            Reply::bulk("\r\n"),
            Reply::Array(Vec::new()),
        ]);
        let mut bytes = Vec::new();
        reply.encode(&mut bytes);
        assert_eq!(bytes, b"*6\r\n+OK\r\n-ERR a  b\r\n:-3\r\n$-1\r\n$2\r\n\r\n\r\n*0\r\n");
    }
}
