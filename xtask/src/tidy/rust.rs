//! Separates the code and the comments of a source file, by the compiler's lexer, because parsers drop comments.

use ra_ap_rustc_lexer::{FrontmatterAllowed, LiteralKind, TokenKind, tokenize};

/// The code and the comments of a source file. Both texts keep the length and the lines of the file, so that offsets are the same in all three.
#[derive(Debug)]
pub(super) struct Rust {
    /// The code, with blanks for comments and for string and character literals.
    pub(super) code: String,
    /// The comments, with blanks for the code.
    pub(super) comments: String,
}

impl Rust {
    pub(super) fn new(text: &str) -> Self {
        let mut code = text.as_bytes().to_vec();
        let mut comments = blank(text.as_bytes());
        let mut end = 0;
        for token in tokenize(text, FrontmatterAllowed::No) {
            let start = end;
            end += token.len as usize;
            let is_comment =
                matches!(token.kind, TokenKind::LineComment { .. } | TokenKind::BlockComment { .. });
            let is_number = |kind| matches!(kind, LiteralKind::Int { .. } | LiteralKind::Float { .. });
            if is_comment || matches!(token.kind, TokenKind::Literal { kind, .. } if !is_number(kind)) {
                code[start..end].copy_from_slice(&blank(&text.as_bytes()[start..end]));
            }
            if is_comment {
                comments[start..end].copy_from_slice(&text.as_bytes()[start..end]);
            }
        }
        // Tokens end at character boundaries, so the texts are UTF-8.
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Self { code: text(code), comments: text(comments) }
    }
}

/// The offsets of `word` in `text` as a whole word.
pub(super) fn words<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    text.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        let before = text[..at].chars().next_back();
        let after = text[at + word.len()..].chars().next();
        !before.is_some_and(in_identifier) && !after.is_some_and(in_identifier)
    })
}

fn in_identifier(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

fn blank(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().map(|&byte| if byte == b'\n' { byte } else { b' ' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The code of `text`, with single blanks.
    fn code(text: &str) -> String {
        let rust = Rust::new(text);
        assert_eq!((rust.code.len(), rust.comments.len()), (text.len(), text.len()));
        rust.code.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn comments_and_literals_are_not_code() {
        assert_eq!(code("a // b \"\nc"), "a c");
        assert_eq!(code("a /* b /* c */ d */ e"), "a e");
        assert_eq!(code(r#"a("b \" c", 'd', '\'', b'e', '"') f"#), "a( , , , , ) f");
        assert_eq!(code("a r\"b\\\" c r#\"d \" e\"# f br##\"g\"## h c\"i\" j"), "a c f h j");
        assert_eq!(
            code("fn r#type<'a>(x: &'a str, y: 'static) 'ä' 'x'"),
            "fn r#type<'a>(x: &'a str, y: 'static)"
        );
        assert_eq!(code("bar\"x\" y"), "bar y");
    }

    #[test]
    fn comments_are_kept_in_place() {
        let rust = Rust::new("a // ä \"x\"\nb");
        assert_eq!(rust.comments, format!("  // ä \"x\"\n "));
        assert_eq!(rust.code.find('b'), Some("a // ä \"x\"\n".len()));
    }

    #[test]
    fn words_stand_alone() {
        assert_eq!(words("unsafe unsafe_code xunsafe (unsafe)", "unsafe").collect::<Vec<_>>(), [0, 28]);
    }
}
