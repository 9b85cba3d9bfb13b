//! What a JSON Web Token must contain.

use super::schema::words;
use super::template::Template;

words! {
    /// The field of the CONNECT that has a token.
    TokenField {
        /// The password.
        Password = "password",
        /// The username.
        Username = "username",
    }
}

/// What a token has to say, and what becomes of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Demands {
    /// None: in the password.
    pub from: Option<TokenField>,
    pub issuer: Option<String>,
    /// One of them has to be in `aud`; none: it is not looked at.
    pub audience: Vec<String>,
    /// Claims with what they have to be.
    pub claims: Vec<(String, Template)>,
    pub username: Template,
    pub attributes: Vec<(String, Template)>,
    pub leeway_secs: u64,
    /// A token that never expires is refused.
    pub expiry_required: bool,
    /// Access rules in it do not matter.
    pub acl_ignored: bool,
    /// Where they are; None: in `ACL`.
    pub acl_claim_name: Option<String>,
}
