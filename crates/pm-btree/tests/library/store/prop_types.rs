//! Encodings of keys and values: the inverse of decoding, ordered like the keys, written down byte for byte; and any bytes decode without a panic.

use core::fmt::Debug;
use pm_btree::{DecodeError, EncodeError, Key, LeadingKey, Plain, Value};
use pm_core::Persist;
use proptest::prelude::*;

/// Strings that are often equal, or prefixes of each other, with characters of all lengths and the least and the greatest one.
const TEXT: &str = "[\u{1}ab\u{7f}é€\u{10ffff}]{0,3}";
/// The same, with zero bytes.
const TEXT_WITH_ZEROES: &str = "[\0\u{1}aé]{0,3}";

#[derive(Clone, Copy, Debug, PartialEq, Persist)]
#[repr(C)]
struct Point {
    x: f32,
    y: i16,
    z: u16,
}

fn encoded<V: Value>(view: V::View<'_>) -> Vec<u8> {
    let mut out = b"before".to_vec();
    V::encode(view, &mut out).unwrap();
    out.split_off(b"before".len())
}

fn encoded_key<K: Key>(view: K::View<'_>) -> Vec<u8> {
    let mut out = b"before".to_vec();
    K::encode_key(view, &mut out).unwrap();
    out.split_off(b"before".len())
}

/// Checks all properties of the encoding of a value, and of the bytes that it becomes if it is cut off or changed.
#[track_caller]
fn value<V: Value>(view: V::View<'_>) {
    let bytes = encoded::<V>(view);
    assert_eq!(format!("{:?}", V::decode(&bytes).unwrap()), format!("{view:?}"), "{bytes:?}");
    if let Some(width) = V::FIXED_WIDTH {
        assert_eq!(bytes.len(), width);
    }
    let mut padded = bytes.clone();
    padded.resize(8, 0);
    let word = (V::FIXED_WIDTH.is_some_and(|width| width <= 8))
        .then(|| u64::from_be_bytes(*padded.as_array().unwrap()));
    assert_eq!(V::encode_word(view), word);
    near(&bytes, any_value::<V>);
}

/// Checks all properties of the encodings of two keys.
#[track_caller]
fn keys<'a, K: Key>(views: [K::View<'a>; 2])
where
    K::View<'a>: Ord,
{
    let bytes = views.map(encoded_key::<K>);
    assert_eq!(bytes[0].cmp(&bytes[1]), views[0].cmp(&views[1]), "{views:?}: {bytes:?}");
    for (view, bytes) in views.into_iter().zip(&bytes) {
        value::<K>(view);
        assert_eq!(format!("{:?}", K::decode_key(bytes).unwrap()), format!("{view:?}"), "{bytes:?}");
        if K::FIXED_WIDTH.is_some() {
            assert_eq!(*bytes, encoded::<K>(view), "a type of fixed width has one encoding");
        }
        near(bytes, any_key::<K>);
    }
}

/// Checks all properties of the encodings of two leading keys.
#[track_caller]
fn leading_keys<'a, K: LeadingKey>(views: [K::View<'a>; 2])
where
    K::View<'a>: Ord,
{
    keys::<K>(views);
    let bytes = views.map(|view| {
        let mut out = Vec::new();
        K::encode_leading(view, &mut out).unwrap();
        out
    });
    assert_eq!(bytes[0].cmp(&bytes[1]), views[0].cmp(&views[1]), "{views:?}: {bytes:?}");
    assert!(bytes[0] == bytes[1] || !bytes[0].starts_with(&bytes[1]), "{views:?}: {bytes:?}");
    for (view, mut bytes) in views.into_iter().zip(bytes) {
        bytes.extend(b"\0after");
        let (split, rest) = K::split_leading(&bytes).unwrap();
        assert_eq!((format!("{split:?}"), rest), (format!("{view:?}"), &b"\0after"[..]));
    }
}

/// Passes `check` the bytes cut off, prolonged, and with each byte changed.
fn near(bytes: &[u8], check: fn(&[u8])) {
    (0..bytes.len()).for_each(|len| check(&bytes[..len]));
    let mut changed = bytes.to_vec();
    changed.push(0);
    check(&changed);
    changed.pop();
    for at in 0..bytes.len() {
        for byte in [0, 1, 2, bytes[at] ^ 0x80, 0xff] {
            changed[at] = byte;
            check(&changed);
        }
        changed[at] = bytes[at];
    }
}

/// Checks that bytes are an encoding, or do not decode.
fn any_value<V: Value>(bytes: &[u8]) {
    if let Ok(view) = V::decode(bytes) {
        assert_eq!(encoded::<V>(view), bytes, "{view:?}");
    }
}

/// Checks that bytes are an encoding of a key, or do not decode.
fn any_key<K: Key>(bytes: &[u8]) {
    if let Ok(view) = K::decode_key(bytes) {
        assert_eq!(encoded_key::<K>(view), bytes, "{view:?}");
    }
}

/// Checks that bytes decode as a value and as a key without a panic.
fn any_bytes<K: Key>(bytes: &[u8]) {
    any_value::<K>(bytes);
    any_key::<K>(bytes);
}

/// Numbers near each other and anywhere.
fn near_zero<T: Arbitrary + From<u8> + Debug>() -> impl Strategy<Value = T> {
    prop_oneof![any::<T>(), any::<u8>().prop_map(T::from)]
}

macro_rules! properties {
    ($($name:ident: $check:ident::<$ty:ty>($strategy:expr, |$value:ident| $view:expr);)+) => {
        proptest! {
            $(
                #[test]
                fn $name(values in [$strategy, $strategy]) {
                    let [first, second] = &values;
                    $check::<$ty>([{ let $value = first; $view }, { let $value = second; $view }]);
                }
            )+
        }
    };
}

properties! {
    u8_is_a_leading_key: leading_keys::<u8>(any::<u8>(), |x| *x);
    u16_is_a_leading_key: leading_keys::<u16>(near_zero::<u16>(), |x| *x);
    u32_is_a_leading_key: leading_keys::<u32>(near_zero::<u32>(), |x| *x);
    u64_is_a_leading_key: leading_keys::<u64>(near_zero::<u64>(), |x| *x);
    u128_is_a_leading_key: leading_keys::<u128>(near_zero::<u128>(), |x| *x);
    i8_is_a_leading_key: leading_keys::<i8>(any::<i8>(), |x| *x);
    i16_is_a_leading_key: leading_keys::<i16>(near_zero::<i16>(), |x| *x);
    i32_is_a_leading_key: leading_keys::<i32>(near_zero::<i32>(), |x| *x);
    i64_is_a_leading_key: leading_keys::<i64>(near_zero::<i64>(), |x| *x);
    i128_is_a_leading_key: leading_keys::<i128>(near_zero::<i128>(), |x| *x);
    bool_is_a_leading_key: leading_keys::<bool>(any::<bool>(), |x| *x);
    char_is_a_leading_key: leading_keys::<char>(any::<char>(), |x| *x);
    unit_is_a_leading_key: leading_keys::<()>(any::<()>(), |x| *x);
    array_is_a_leading_key: leading_keys::<[u8; 3]>(any::<[u8; 3]>(), |x| *x);
    long_array_is_a_leading_key: leading_keys::<[u8; 9]>(any::<[u8; 9]>(), |x| *x);
    str_is_a_leading_key: leading_keys::<&str>(TEXT, |x| x.as_str());
    str_with_zeroes_is_a_key: keys::<&str>(TEXT_WITH_ZEROES, |x| x.as_str());
    bytes_are_a_key: keys::<&[u8]>(prop::collection::vec(0_u8..3, 0..4), |x| x.as_slice());

    pair_of_numbers: leading_keys::<(i16, u32)>((0_i16..2, near_zero::<u32>()), |x| *x);
    pair_with_empty_ends: leading_keys::<((), u64, ())>(near_zero::<u64>(), |x| ((), *x, ()));
    pair_wider_than_a_word: leading_keys::<(u64, u8)>((0_u64..2, any::<u8>()), |x| *x);
    pair_of_strings: leading_keys::<(&str, &str)>((TEXT, TEXT), |x| (&x.0, &x.1));
    pair_that_ends_with_any_string: keys::<(&str, &str)>((TEXT, TEXT_WITH_ZEROES), |x| (&x.0, &x.1));
    triple_of_all_kinds: keys::<(bool, &str, &[u8])>(
        (any::<bool>(), TEXT, prop::collection::vec(0_u8..3, 0..4)), |x| (x.0, &x.1, &x.2));
    four_elements: leading_keys::<(&str, i8, &str, char)>(
        (TEXT, -1_i8..2, TEXT, any::<char>()), |x| (&x.0, x.1, &x.2, x.3));
    five_elements: leading_keys::<(u8, u8, u8, u8, i32)>(
        (0..2_u8, 0..2_u8, 0..2_u8, 0..2_u8, any::<i32>()), |x| *x);
    six_elements: leading_keys::<(u8, &str, u8, &str, u8, &str)>(
        (0..2_u8, TEXT, 0..2_u8, TEXT, 0..2_u8, TEXT), |x| (x.0, &x.1, x.2, &x.3, x.4, &x.5));
    nested_tuples: leading_keys::<((u8, &str), (&str, i16))>(
        ((0..2_u8, TEXT), (TEXT, -1_i16..2)), |x| ((x.0.0, &x.0.1), (&x.1.0, x.1.1)));
}

proptest! {
    #[test]
    fn values_are_decoded(
        (int, float, double) in (any::<i32>(), prop::num::f32::ANY, prop::num::f64::ANY),
        (text, bytes) in (TEXT_WITH_ZEROES, prop::collection::vec(any::<u8>(), 0..9)),
    ) {
        value::<f32>(float);
        value::<f64>(double);
        value::<Option<i32>>(Some(int));
        value::<Option<i32>>(None);
        value::<Option<f64>>(Some(double));
        value::<Option<f64>>(None);
        value::<Option<&str>>(Some(&text));
        value::<Option<&str>>(None);
        value::<Option<Option<()>>>(Some(None));
        value::<Option<(u8, Option<i32>)>>(Some((7, Some(int))));
        value::<(f32, Option<u16>, bool)>((float, Some(7), true));
        value::<(&[u8], &str, f64)>((&bytes, &text, double));
        value::<(Option<&str>, &[u8])>((Some(&text), &bytes));
        value::<((&[u8], &str), &str, ())>(((&bytes, &text), &text, ()));
        value::<Plain<Point>>(Point { x: float, y: 3, z: 4 });
        value::<Plain<[u16; 5]>>([1, 2, 3, 4, 5]);
        value::<(Plain<u16>, i32)>((5, int));
        value::<Plain<[u64; 0]>>([]);
    }

    #[test]
    fn any_bytes_are_an_encoding_or_an_error(
        bytes in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..20),
            prop::collection::vec(prop_oneof![Just(0_u8), Just(1), Just(b'a'), Just(0xc3), Just(0xa9)], 0..20),
        ],
    ) {
        any_bytes::<u64>(&bytes);
        any_bytes::<bool>(&bytes);
        any_bytes::<char>(&bytes);
        any_bytes::<&str>(&bytes);
        any_bytes::<(&str, u8)>(&bytes);
        any_bytes::<(&str, bool, &str)>(&bytes);
        any_bytes::<((&str, &str), char)>(&bytes);
        any_bytes::<(u8, i16, &[u8])>(&bytes);
        any_value::<Option<bool>>(&bytes);
        any_value::<Option<&str>>(&bytes);
        any_value::<(Option<&str>, Option<u8>)>(&bytes);
        any_value::<(&[u8], &str)>(&bytes);
        any_value::<(&[u8], (&[u8], &str), f32)>(&bytes);
        any_value::<Plain<Point>>(&bytes);
    }
}

#[test]
fn encodings_never_change() {
    assert_eq!(encoded::<u32>(0x0102_0304), [1, 2, 3, 4]);
    assert_eq!(encoded::<i16>(-2), [0x7f, 0xfe]);
    assert_eq!(encoded::<i128>(5), [&[0x80][..], &[0; 14], &[5]].concat());
    assert_eq!(encoded::<f64>(-1.5), [0xbf, 0xf8, 0, 0, 0, 0, 0, 0]);
    assert_eq!(encoded::<bool>(true), [1]);
    assert_eq!(encoded::<char>('€'), [0, 0, 0x20, 0xac]);
    assert_eq!(encoded::<Option<u16>>(Some(7)), [1, 0, 7]);
    assert_eq!(encoded::<Option<u16>>(None), [0, 0, 0]);
    assert_eq!(encoded::<Option<&str>>(None), [0]);
    assert_eq!(encoded::<(&str, u8, &[u8])>(("ab", 9, &[8])), [2, 0, 0, 0, b'a', b'b', 9, 8]);
    assert_eq!(encoded_key::<(&str, u8, &[u8])>(("ab", 9, &[8])), [b'a', b'b', 0, 9, 8]);
    assert_eq!(encoded::<Plain<Point>>(Point { x: 1.0, y: -1, z: 2 }), [0, 0, 0x80, 0x3f, 0xff, 0xff, 2, 0]);
}

#[test]
fn names_never_change() {
    let names = [u8::type_name(), i128::type_name(), f32::type_name(), bool::type_name(), char::type_name()];
    assert_eq!(names, ["u8", "i128", "f32", "bool", "char"]);
    assert_eq!(
        [<&str>::type_name(), <&[u8]>::type_name(), <[u8; 4]>::type_name()],
        ["str", "bytes", "[u8; 4]"]
    );
    assert_eq!(<((), Option<&str>, (u8, i64))>::type_name(), "((), Option<str>, (u8, i64))");
    assert_eq!(Plain::<Point>::type_name(), format!("struct of 8 bytes with layout {:016x}", Point::LAYOUT));
    assert_eq!(Plain::<u64>::type_name(), "struct of 8 bytes with layout bfdbc0e54a446817");
}

#[test]
fn errors_say_what_is_wrong() {
    let mut out = Vec::new();
    assert_eq!(
        <(u8, &str, u8)>::encode_key((1, "ab\0c", 2), &mut out),
        Err(EncodeError::Nul { position: 2 })
    );
    assert_eq!(<(u8, &str)>::encode_key((1, "ab\0c"), &mut out), Ok(()));
    assert_eq!(u32::decode(&[1, 2]), Err(DecodeError::Width { expected: 4, found: 2 }));
    assert_eq!(bool::decode(&[2]), Err(DecodeError::Pattern { of: "bool", found: 2 }));
    assert_eq!(char::decode(&[0, 0, 0xd8, 0]), Err(DecodeError::Pattern { of: "char", found: 0xd800 }));
    assert_eq!(<&str>::decode(b"a\xff"), Err(DecodeError::Utf8 { valid_bytes: 1 }));
    assert_eq!(Option::<u16>::decode(&[]), Err(DecodeError::Width { expected: 3, found: 0 }));
    assert_eq!(Option::<u16>::decode(&[0, 7]), Err(DecodeError::Width { expected: 3, found: 2 }));
    assert_eq!(Option::<u8>::decode(&[3, 7]), Err(DecodeError::Pattern { of: "Option", found: 3 }));
    assert_eq!(
        <(&str, u8)>::decode(&[2, 0, 0, 0, b'a']),
        Err(DecodeError::Truncated { expected: 2, found: 1 })
    );
    assert_eq!(<(&str, u8)>::decode(&[2, 0]), Err(DecodeError::Truncated { expected: 4, found: 2 }));
    assert_eq!(<(&str, u8)>::decode_key(b"ab"), Err(DecodeError::Unterminated { found: 2 }));
    assert_eq!(<(u32, &str)>::decode_key(b"ab"), Err(DecodeError::Truncated { expected: 4, found: 2 }));
}

/// As a table passes views: the lifetimes in the types of keys and values have no meaning, and the types of literals are inferred.
#[test]
fn views_are_passed_by_value() {
    fn insert<K: Key, V: Value>(key: K::View<'_>, value: V::View<'_>) -> usize {
        encoded_key::<K>(key).len() + encoded::<V>(value).len()
    }
    let local = String::from("ada");
    assert_eq!(insert::<&str, u64>(&local, 3), 11);
    assert_eq!(insert::<(u8, &str), Option<&[u8]>>((7, &local), Some(&[1, 2])), 7);
    assert_eq!(insert::<[u8; 2], Plain<Point>>([1, 2], Point { x: 0.0, y: 1, z: 2 }), 10);
}
