//! `#[derive(Persist)]` for [`pm-core`](https://docs.rs/pm-core): see the trait's documentation there.
//!
//! The derive accepts a `#[repr(C)]` struct whose fields are all `Persist`, and refuses to compile one with padding
//! between or behind them: padding bytes are undefined in memory and would make checksums and comparisons lie.

use proc_macro::TokenStream;
use proc_macro2::TokenStream as TokenStream2;
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Data, DeriveInput, Error, Fields, parse_macro_input};

/// Implements `pm_core::Persist` for a `#[repr(C)]` struct without padding, references or other things that mean
/// nothing after a restart.
#[proc_macro_derive(Persist)]
pub fn persist(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    expand(&input).unwrap_or_else(Error::into_compile_error).into()
}

fn expand(input: &DeriveInput) -> syn::Result<TokenStream2> {
    check_repr(input)?;
    let Data::Struct(data) = &input.data else {
        return Err(Error::new_spanned(
            &input.ident,
            "only structs can be Persist: not every bit pattern is a value of an enum, and a union does not say \
             which field it holds",
        ));
    };
    if let Some(parameter) = input.generics.type_params().next() {
        return Err(Error::new_spanned(
            parameter,
            "a Persist struct cannot be generic over types: its layout on the medium must be one",
        ));
    }
    let Fields::Named(fields) = &data.fields else {
        return Err(Error::new_spanned(
            &input.ident,
            "a Persist struct needs named fields: their names are part of the layout's fingerprint",
        ));
    };

    let name = &input.ident;
    let label = name.to_string();
    let (impl_generics, type_generics, where_clause) = input.generics.split_for_impl();
    let types: Vec<_> = fields.named.iter().map(|field| &field.ty).collect();
    let names: Vec<_> = fields.named.iter().filter_map(|field| field.ident.as_ref()).collect();
    let labels: Vec<_> = names.iter().map(ToString::to_string).collect();
    // Spanned at the field's type, so that the compiler's complaint points there.
    let field_layouts = types.iter().map(|ty| {
        quote_spanned! {ty.span()=> <#ty as ::pm_core::Persist>::LAYOUT }
    });
    // Forces the check for every struct, used or not. Lifetimes are all there can be to fill in.
    let statics = input.generics.lifetimes().map(|_| quote!('static));
    let consts = input.generics.const_params().next().is_none();
    let force = consts.then(|| {
        quote! { const _: () = <#name<#(#statics),*> as ::pm_core::Persist>::CHECK; }
    });

    Ok(quote! {
        // SAFETY: the struct is repr(C), each field's type is Persist (LAYOUT below names the trait for each of
        // them), and CHECK shows that the fields leave no padding.
        #[automatically_derived]
        unsafe impl #impl_generics ::pm_core::Persist for #name #type_generics #where_clause {
            const FIELDS: &'static [::pm_core::FieldLayout] = &[#(
                ::pm_core::FieldLayout {
                    name: #labels,
                    offset_bytes: ::core::mem::offset_of!(Self, #names),
                    size_bytes: ::core::mem::size_of::<#types>(),
                    layout: #field_layouts,
                },
            )*];
            const LAYOUT: u64 = ::pm_core::FieldLayout::fingerprint(#label, Self::FIELDS);
            const CHECK: () = assert!(
                ::core::mem::size_of::<Self>() == 0 #( + ::core::mem::size_of::<#types>() )*,
                ::core::concat!(#label, " has padding: add reserved fields until the sizes add up"),
            );
        }
        #force
    })
}

fn check_repr(input: &DeriveInput) -> syn::Result<()> {
    let mut is_c = false;
    for attribute in input.attrs.iter().filter(|attribute| attribute.path().is_ident("repr")) {
        attribute.parse_nested_meta(|meta| {
            if meta.path.is_ident("C") {
                is_c = true;
            } else if meta.path.is_ident("packed") {
                return Err(meta.error("a packed field may straddle a word, and would then be torn by a crash"));
            } else if meta.input.peek(syn::token::Paren) {
                // The number in align(N).
                let content;
                syn::parenthesized!(content in meta.input);
                content.parse::<TokenStream2>()?;
            }
            Ok(())
        })?;
    }
    if is_c {
        Ok(())
    } else {
        Err(Error::new_spanned(
            &input.ident,
            "Persist needs #[repr(C)]: Rust's own layout may change with the compiler",
        ))
    }
}
