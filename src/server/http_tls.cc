// TLS by OpenSSL, apart from the plain sessions: each of the two takes a while to compile.
#include <boost/asio/ssl/context.hpp>
#include <boost/beast/ssl/ssl_stream.hpp>

#include "base/error.h"
#include "server/http_session.h"

namespace sinter::server {

asio::awaitable<void> serve_tls(PlainStream stream, void* tls, std::shared_ptr<SessionContext> context,
                                std::string remote) {
  beast::ssl_stream<PlainStream> secure(std::move(stream), *static_cast<asio::ssl::context*>(tls));
  beast::get_lowest_layer(secure).expires_after(to_duration(context->options.read_seconds));
  auto [error] = co_await secure.async_handshake(asio::ssl::stream_base::server, kTuple);
  if (error) co_return;
  Session<beast::ssl_stream<PlainStream>> session(secure, *context, std::move(remote));
  co_await session.run();
  beast::get_lowest_layer(secure).expires_after(to_duration(2));
  co_await secure.async_shutdown(kTuple);
}

std::shared_ptr<void> make_tls_context(const ListenOptions& options) {
  SINTER_CHECK(!options.certificate.empty() && !options.private_key.empty(),
               "TLS needs both --tls-certificate and --tls-key");
  auto context = std::make_shared<asio::ssl::context>(asio::ssl::context::tls_server);
  context->set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_tlsv1 |
                       asio::ssl::context::no_tlsv1_1);
  boost::system::error_code error;
  context->use_certificate_chain_file(options.certificate, error);
  SINTER_CHECK(!error, "cannot use the certificate '{}': {}; expected a PEM file", options.certificate,
               error.message());
  context->use_private_key_file(options.private_key, asio::ssl::context::pem, error);
  SINTER_CHECK(!error, "cannot use the key '{}': {}; expected a PEM file that belongs to the certificate",
               options.private_key, error.message());
  return context;
}

}  // namespace sinter::server
