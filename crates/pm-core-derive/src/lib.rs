//! `#[derive(Persist)]` for [`pm-core`](https://docs.rs/pm-core): see the trait's documentation there.
//!
//! The derive accepts a `#[repr(C)]` struct whose fields are all `Persist`, and rejects a struct with padding between or after its fields: the
//! contents of padding bytes are undefined, and would make checksums and comparisons wrong.

use proc_macro::TokenStream;
use proc_macro2::TokenStream as TokenStream2;
use quote::{format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Data, DeriveInput, Error, Fields, FieldsNamed, GenericParam, Lifetime, parse_macro_input};

/// Implements `pm_core::Persist` and `pm_core::InPool` for a `#[repr(C)]` struct without padding, references or other types that are invalid after
/// a restart. The lifetime of the struct, if it has one, is the brand of the pool.
#[proc_macro_derive(Persist)]
pub fn persist(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    expand(&input).unwrap_or_else(Error::into_compile_error).into()
}

fn expand(input: &DeriveInput) -> syn::Result<TokenStream2> {
    check_repr(input)?;
    let fields = named_fields(input)?;
    let brand = only_lifetime(input)?;

    let name = &input.ident;
    let label = name.to_string();
    let types: Vec<_> = fields.named.iter().map(|field| &field.ty).collect();
    let names: Vec<_> = fields.named.iter().filter_map(|field| field.ident.as_ref()).collect();
    let labels: Vec<_> = names.iter().map(ToString::to_string).collect();
    let generics = &input.generics;
    let (_, arguments, _) = generics.split_for_impl();
    // A struct without a lifetime has no links, and belongs to every pool.
    let any_pool = brand.is_none().then(|| quote!(<'p>));
    let pool = brand.cloned().unwrap_or_else(|| Lifetime::new("'p", name.span()));
    let static_arguments = brand.map(|_| quote!(<'static>));
    // Spanned at the type of the field, so that the compiler reports errors there.
    let layouts =
        types.iter().map(|ty| quote_spanned!(ty.span()=> <#ty as ::pm_core::Persist>::LAYOUT_THROUGH_0));
    // A constant for each number of links that the fingerprint follows.
    let fingerprints = (0..4).map(|links| {
        let constant = format_ident!("LAYOUT_THROUGH_{links}");
        let layouts = types.iter().map(|ty| quote_spanned!(ty.span()=> <#ty as ::pm_core::Persist>::#constant));
        quote!(const #constant: u64 = ::pm_core::FieldLayout::fingerprint_with(#label, Self::FIELDS, &[#(#layouts),*]);)
    });
    let in_pool = types.iter().map(|ty| quote_spanned!(ty.span()=> belongs::<#pool, #ty>();));

    Ok(quote! {
        // SAFETY: the struct is repr(C), each field's type is Persist (the LAYOUT_THROUGH constants below name the trait for each of them), and CHECK
        // shows that the fields leave no padding.
        #[automatically_derived]
        unsafe impl #generics ::pm_core::Persist for #name #arguments {
            const FIELDS: &'static [::pm_core::FieldLayout] = &[#(
                ::pm_core::FieldLayout {
                    name: #labels,
                    offset_bytes: ::core::mem::offset_of!(Self, #names),
                    size_bytes: ::core::mem::size_of::<#types>(),
                    layout: #layouts,
                },
            )*];
            #(#fingerprints)*
            const CHECK: () = assert!(
                ::core::mem::size_of::<Self>() == 0 #( + ::core::mem::size_of::<#types>() )*,
                ::core::concat!(#label, " has padding: add reserved fields to fill it"),
            );
        }

        #[automatically_derived]
        impl #generics #any_pool ::pm_core::InPool<#pool> for #name #arguments {}

        // Evaluates both checks, InPool for each field and CHECK, for every struct, even an unused one.
        const _: () = {
            const fn belongs<'p, T: ::pm_core::InPool<'p>>() {}
            const fn all_fields_belong<#pool>() { #(#in_pool)* }
            all_fields_belong();
            <#name #static_arguments as ::pm_core::Persist>::CHECK
        };
    })
}

fn named_fields(input: &DeriveInput) -> syn::Result<&FieldsNamed> {
    let Data::Struct(data) = &input.data else {
        return Err(Error::new_spanned(
            &input.ident,
            "only structs can be Persist: not every bit pattern is a value of an enum, and a union does not \
             record which field it holds",
        ));
    };
    let Fields::Named(fields) = &data.fields else {
        return Err(Error::new_spanned(
            &input.ident,
            "a Persist struct needs named fields: their names are part of the layout's fingerprint",
        ));
    };
    Ok(fields)
}

/// The struct's lifetime, which is the brand of its links; `None` if it has none.
fn only_lifetime(input: &DeriveInput) -> syn::Result<Option<&Lifetime>> {
    let mut parameters = input.generics.params.iter();
    let brand = match parameters.next() {
        None => return Ok(None),
        Some(GenericParam::Lifetime(parameter)) => &parameter.lifetime,
        Some(other) => {
            return Err(Error::new_spanned(
                other,
                "a Persist struct cannot be generic: it must have a single layout on the medium",
            ));
        }
    };
    match parameters.next() {
        None => Ok(Some(brand)),
        Some(other) => Err(Error::new_spanned(
            other,
            "a Persist struct has at most one parameter, the lifetime that brands its links with their pool",
        )),
    }
}

fn check_repr(input: &DeriveInput) -> syn::Result<()> {
    let mut is_c = false;
    for attribute in input.attrs.iter().filter(|attribute| attribute.path().is_ident("repr")) {
        attribute.parse_nested_meta(|meta| {
            if meta.path.is_ident("C") {
                is_c = true;
            } else if meta.path.is_ident("packed") {
                return Err(meta.error("a packed field may straddle two words, and a crash could tear it"));
            } else if meta.input.peek(syn::token::Paren) {
                // This consumes the number in `align(N)`.
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
