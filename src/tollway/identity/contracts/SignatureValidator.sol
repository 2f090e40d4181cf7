// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @title Does this address stand behind this digest? One byte of answer, for every kind of wallet.
/// @notice Never deployed. Its creation code, followed by abi.encode(signer, digest, signature), is run by `eth_call`
///         without a `to`; what it "returns as code" is 0x01 for yes and 0x00 for no. A revert means no as well.
/// @dev The order of ERC-6492: a wrapped signature first (the wallet is made inside this call when it does not stand
///      yet), then ERC-1271 if there is code, then ECDSA. ECDSA also follows a refused ERC-1271, for delegated
///      accounts (EIP-7702), whose key still signs; no key is known for the address of an ordinary contract.
///      A wrapped signature for a wallet that already stands never runs the wrapped call: whoever sends the signature
///      composes that call, and it could put the wallet into a passing state in which it says yes.
contract SignatureValidator {
    bytes32 private constant WRAPPED = 0x6492649264926492649264926492649264926492649264926492649264926492;
    uint256 private constant HALF_ORDER = 0x7fffffffffffffffffffffffffffffff5d576e7357a4501ddfe92f46681b20a0;
    /// @dev What a wallet that burns all of its gas leaves for the rest of this code.
    uint256 private constant GAS_KEPT = 12_000;

    constructor(address signer, bytes32 digest, bytes memory signature) {
        bool valid = _isValid(signer, digest, signature);
        assembly ("memory-safe") {
            mstore8(0, valid)
            return(0, 1)
        }
    }

    function _isValid(address signer, bytes32 digest, bytes memory signature) private returns (bool) {
        if (_isWrapped(signature)) {
            (address factory, bytes memory deployment, bytes memory inner) =
                abi.decode(signature, (address, bytes, bytes));
            if (signer.code.length == 0) {
                bool made;
                assembly {
                    // No answer is copied: a factory cannot make us pay for its memory.
                    made := call(gas(), factory, 0, add(deployment, 32), mload(deployment), 0, 0)
                }
                if (!made) return false;
            }
            return _isValidContractSignature(signer, digest, inner);
        }
        if (signer.code.length > 0 && _isValidContractSignature(signer, digest, signature)) return true;
        return _isValidKeySignature(signer, digest, signature);
    }

    function _isWrapped(bytes memory signature) private pure returns (bool) {
        if (signature.length < 32) return false;
        bytes32 tail;
        assembly ("memory-safe") {
            tail := mload(add(signature, mload(signature)))
        }
        return tail == WRAPPED;
    }

    function _isValidContractSignature(address signer, bytes32 digest, bytes memory signature)
        private
        view
        returns (bool valid)
    {
        bytes memory question = abi.encodeWithSelector(0x1626ba7e, digest, signature);
        uint256 offered = gasleft() > GAS_KEPT ? gasleft() - GAS_KEPT : 0;
        assembly {
            // 32 bytes of answer are taken, however many are sent.
            mstore(0, 0)
            let ok := staticcall(offered, signer, add(question, 32), mload(question), 0, 32)
            let yes := shl(224, 0x1626ba7e)
            valid := and(ok, and(gt(returndatasize(), 31), eq(mload(0), yes)))
        }
    }

    function _isValidKeySignature(address signer, bytes32 digest, bytes memory signature) private pure returns (bool) {
        if (signature.length != 65) return false;
        bytes32 r;
        bytes32 s;
        uint8 v;
        assembly ("memory-safe") {
            r := mload(add(signature, 32))
            s := mload(add(signature, 64))
            v := byte(0, mload(add(signature, 96)))
        }
        if (v < 27) v += 27;
        if (uint256(s) > HALF_ORDER || (v != 27 && v != 28)) return false;
        address recovered = ecrecover(digest, v, r, s);
        return recovered != address(0) && recovered == signer;
    }
}
