//! A certificate authority of a test, and what it vouches for.

#![allow(clippy::unwrap_used, reason = "a test may fail by a panic")]

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};
use rustls::ServerConfig;
use rustls::pki_types::PrivatePkcs8KeyDer;

/// An authority that nobody knows but who has its certificate.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Its certificate, as SSL_CERT_FILE takes it, without a library for that format.
    pub(crate) fn pem(&self) -> String {
        let mut pem = "-----BEGIN CERTIFICATE-----\n".to_owned();
        pem.push_str(&base64(self.0.der()));
        pem.push_str("\n-----END CERTIFICATE-----\n");
        pem
    }

    /// A server with a certificate for `name`, which ended in the year 2001 if it `is_expired`.
    pub(crate) fn server(&self, name: &str, is_expired: bool) -> Arc<ServerConfig> {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        if is_expired {
            params.not_before = date_time_ymd(2000, 1, 1);
            params.not_after = date_time_ymd(2001, 1, 1);
        }
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        let chain = vec![certificate.der().clone()];
        Arc::new(config.unwrap().with_no_client_auth().with_single_cert(chain, key.into()).unwrap())
    }
}

/// Bytes in base 64, in lines.
pub(crate) fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for (index, three) in bytes.chunks(3).enumerate() {
        if index > 0 && index % 16 == 0 {
            text.push('\n');
        }
        let number = (0..3).fold(0, |sum, at| sum << 8 | u32::from(three.get(at).copied().unwrap_or(0)));
        for at in 0..4 {
            let digit = number >> (18 - 6 * at) & 63;
            text.push(if at <= three.len() { char::from(DIGITS[digit as usize]) } else { '=' });
        }
    }
    text
}
