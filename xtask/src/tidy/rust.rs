//! As much of Rust as the rules need: what is code, what is a comment, and which function a place is in.
//!
//! By the compiler's lexer, and not by a parser: parsers drop comments, and two of the rules are about comments.

use std::ops::Range;

use ra_ap_rustc_lexer::{FrontmatterAllowed, LiteralKind, TokenKind, tokenize};

/// A source file, taken apart. Both texts have the file's own length and lines, so that an offset means the
/// same in all three.
#[derive(Debug)]
pub(super) struct Rust {
    /// The code, with blanks for comments and for the insides of strings and characters.
    pub(super) code: String,
    /// The comments, with blanks for all else.
    pub(super) comments: String,
}

/// A function with a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Function<'a> {
    pub(super) name: &'a str,
    /// What is between its braces.
    pub(super) body: Range<usize>,
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
        // Tokens end where characters do, so what was blanked was whole characters.
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Self { code: text(code), comments: text(comments) }
    }

    /// Every function with a body, in the order of their beginnings.
    pub(super) fn functions(&self) -> Vec<Function<'_>> {
        words(&self.code, "fn").filter_map(|at| self.function(at)).collect()
    }

    /// The innermost function around `offset`.
    pub(super) fn function_around(&self, offset: usize) -> Option<Function<'_>> {
        self.functions().into_iter().rfind(|function| function.body.contains(&offset))
    }

    /// The code from `start` to the end of the statement there, or of the block that it is the last one in.
    pub(super) fn statement(&self, start: usize) -> &str {
        let mut depth = 0;
        for (at, byte) in self.code.bytes().enumerate().skip(start) {
            match byte {
                b'(' | b'[' | b'{' => depth += 1,
                b')' | b']' | b'}' if depth == 0 => return &self.code[start..at],
                b')' | b']' => depth -= 1,
                b'}' => {
                    depth -= 1;
                    if depth == 0 && !goes_on(&self.code[at + 1..]) {
                        return &self.code[start..=at];
                    }
                }
                b';' if depth == 0 => return &self.code[start..at],
                _ => {}
            }
        }
        &self.code[start..]
    }

    /// The function whose `fn` is at `at`; `None` for a type `fn(..)` and for a declaration without a body.
    fn function(&self, at: usize) -> Option<Function<'_>> {
        let after = at + "fn".len();
        let name_at = after + (self.code[after..].len() - self.code[after..].trim_start().len());
        let name = identifier(&self.code[name_at..])?;
        let mut depth = 0;
        for (at, byte) in self.code.bytes().enumerate().skip(name_at) {
            match byte {
                b'(' | b'[' => depth += 1,
                b')' | b']' => depth -= 1,
                b';' if depth == 0 => return None,
                b'{' if depth == 0 => return Some(Function { name, body: at + 1..self.block_end(at) }),
                _ => {}
            }
        }
        None
    }

    /// Where the block that begins at `open` ends.
    fn block_end(&self, open: usize) -> usize {
        let mut depth = 0;
        for (at, byte) in self.code.bytes().enumerate().skip(open) {
            match byte {
                b'{' => depth += 1,
                b'}' => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return at;
            }
        }
        self.code.len()
    }
}

/// Where `word` stands in `text` as a word of its own.
pub(super) fn words<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    text.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        let before = text[..at].chars().next_back();
        let after = text[at + word.len()..].chars().next();
        !before.is_some_and(in_identifier) && !after.is_some_and(in_identifier)
    })
}

/// The names of all functions, methods and tuple structs that `code` calls.
pub(super) fn calls(code: &str) -> impl Iterator<Item = &str> {
    code.match_indices('(').filter_map(|(at, _)| {
        let name = code[..at].rsplit(|character| !in_identifier(character)).next()?;
        (!name.is_empty()).then_some(name)
    })
}

/// The identifier that `text` begins with.
pub(super) fn identifier(text: &str) -> Option<&str> {
    let end = text.find(|character| !in_identifier(character)).unwrap_or(text.len());
    (end > 0).then(|| &text[..end])
}

fn in_identifier(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// Whether a statement whose block has just ended goes on with this.
fn goes_on(rest: &str) -> bool {
    let rest = rest.trim_start();
    rest.starts_with(['.', '?', ';', ')', ',']) || identifier(rest) == Some("else")
}

fn blank(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().map(|&byte| if byte == b'\n' { byte } else { b' ' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The code of `text`, with each run of blanks as one.
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
    fn functions_have_names_and_bodies() {
        let rust = Rust::new("fn a() -> [u8; 4] { x(fn() {}); fn b() { y } } fn c(); type D = fn(u8);");
        let names: Vec<_> = rust.functions().iter().map(|function| function.name).collect();
        assert_eq!(names, ["a", "b"]);
        let name_at = |text| rust.function_around(rust.code.find(text).expect("it is there")).map(|f| f.name);
        assert_eq!((name_at("x("), name_at("type")), (Some("a"), None));
        assert_eq!(name_at("y"), Some("b"));
    }

    #[test]
    fn a_statement_ends_at_its_semicolon_or_its_block() {
        let statement = |text| Rust::new(text).statement(0).to_owned();
        assert_eq!(statement("a([1; 2])?; b"), "a([1; 2])?");
        assert_eq!(statement("a(b) } c"), "a(b) ");
        assert_eq!(statement("if a { b; } c;"), "if a { b; }");
        assert_eq!(statement("if a { b } else { c } d;"), "if a { b } else { c }");
        assert_eq!(statement("f(|| { a }).b(); c"), "f(|| { a }).b()");
    }

    #[test]
    fn words_and_calls() {
        assert_eq!(words("unsafe unsafe_code xunsafe (unsafe)", "unsafe").collect::<Vec<_>>(), [0, 28]);
        assert_eq!(calls("a.fence(b(1), (2)) c!(3)").collect::<Vec<_>>(), ["fence", "b"]);
    }
}
